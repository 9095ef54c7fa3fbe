"""Reads bodies: a client's request, an engine's answer. Compiled (hatch_build.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from fulcrum.gateway.openai.errors import bad_request, model_not_found
from fulcrum.gateway.openai.inference_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EngineAnswer,
    InferenceRequest,
    LargeFields,
)

_COMPLETION_TOKENS: Final = 16
_MOST: Final = 1 << 31
# Connector fields name a peer to read KV from: from a client they would read another client's KV, or any host.
_CONNECTOR_FIELDS: Final = frozenset(("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "priority"))
_WHOLE_WHEN_SET: Final = (
    "echo",  # echoed logprobs need the prompt's logits, which are not in the KV cache
    "use_beam_search",  # beams are separate engine requests; the KV of one prefill serves only one
    "suffix",
)
_WHOLE_WHEN_PRESENT: Final = (
    "prompt_logprobs",  # as echo
    "truncate_prompt_tokens",  # the cut may depend on max_tokens, which differs between the legs
    "prompt_embeds",
)
_MORE_THAN_ONE: Final = ("n", "best_of")  # several sequences would pull the same KV; the first one frees it
_WHOLE_FIELDS: Final = frozenset((*_WHOLE_WHEN_SET, *_WHOLE_WHEN_PRESENT, *_MORE_THAN_ONE))
_COUNTS: Final = frozenset(("max_tokens", "max_completion_tokens", "n", "best_of"))
_FLAGS: Final = frozenset(("stream", "echo", "use_beam_search"))

_MOST_FIELDS: Final = 1024
"""Every field is an object in memory: 600,000 of them, in 8 MB, kept the event loop for a second."""

_SLICE_BYTES: Final = 1024 * 1024
"""Bytes of a body that are searched for halves of surrogate pairs at once: at most 10 ms."""
_PAIR_BYTES: Final = 12
_HALF_A_PAIR: Final = re.compile(
    rb"\\u[dD](?:[89abAB](?!..\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F])", re.DOTALL
)

_fields_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_large_decoder: Final = msgspec.json.Decoder(LargeFields)
Fields = TypeVar("Fields")
_one_decoder: Final = msgspec.json.Decoder(tuple[Raw])
_answer_decoder: Final = msgspec.json.Decoder(EngineAnswer)


def read_request(path: str, body: bytes | bytearray, served_name: str) -> InferenceRequest:
    """The request that a client's `body` makes. Raises RequestError (400, 404)."""
    for _ in check_body(body):
        pass
    return read_checked(path, body, served_name)


def check_body(body: bytes | bytearray) -> Iterator[None]:
    """Check that reading a body is cheap, and what msgspec does not look at in raw fields. Raises RequestError (400).

    Yields where a large one has kept the event loop long enough.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise bad_request("The body is not valid UTF-8.", code="invalid_json") from None
    yield
    if body.count(b":") > _MOST_FIELDS and _colons_between_fields(body) > _MOST_FIELDS:
        raise bad_request(f"The body has more than {_MOST_FIELDS} fields.", code="invalid_json")
    if 0x5C not in body or not (b"\\ud" in body or b"\\uD" in body):
        return
    yield
    escapes = body.replace(b"\\\\", b"  ")  # what backslashes are left begin an escape
    for begin in range(0, len(escapes), _SLICE_BYTES):
        yield
        end = begin + _SLICE_BYTES
        half = _HALF_A_PAIR.search(escapes, begin, end + _PAIR_BYTES)
        if half is not None and half.start() < end:
            raise bad_request("The body is not valid JSON: half of a surrogate pair.", code="invalid_json")


def read_checked(path: str, body: bytes | bytearray, served_name: str) -> InferenceRequest:
    """The request that a body makes whose text was checked. Raises RequestError (400, 404)."""
    fields = _decode(_fields_decoder, body)
    _check_model(fields.get("model"), served_name)
    if not fields.keys().isdisjoint(_CONNECTOR_FIELDS):
        _drop_connector_fields(fields)
    # What the engine takes where a completion does not say; a chat may fill the model's length.
    max_tokens = _COMPLETION_TOKENS if path == COMPLETIONS_PATH and "max_tokens" not in fields else None
    for name, value in fields.items():
        if name in _COUNTS:
            number = _read_count(value, name)
            if number is not None and (
                name == "max_completion_tokens" or (name == "max_tokens" and max_tokens is None)
            ):
                max_tokens = number
        elif name in _FLAGS and bytes(value) not in (b"true", b"false", b"null"):
            raise bad_request(f"`{name}` must be true or false.", param=name)
    whole = not fields.keys().isdisjoint(_WHOLE_FIELDS) and _needs_whole(fields)
    if path == CHAT_PATH:
        _check_messages(fields.get("messages"))
    else:
        whole = _check_prompt(fields) or whole
    stream = fields.get("stream")
    return InferenceRequest(
        path=path,
        fields=fields,
        stream=stream is not None and bytes(stream) == b"true",
        whole=whole,
        max_tokens=max_tokens,
    )


def _decode(decoder: msgspec.json.Decoder[Fields], body: bytes | bytearray) -> Fields:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise bad_request("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None


def _colons_between_fields(body: bytes | bytearray) -> int:
    """Colons outside of the values that may have many: at least one for each other field."""
    large = _decode(_large_decoder, body)
    return body.count(b":") - sum(bytes(getattr(large, name)).count(b":") for name in large.__struct_fields__)


def _drop_connector_fields(fields: dict[str, Raw]) -> None:
    fields.pop("priority", None)  # a class has one, a client cannot raise itself
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if _set(fields.pop(name, None)):
            raise bad_request(f"`{name}` is set by the gateway and cannot be sent by a client.", param=name)
    if b"transfer_params" in bytes(fields.get("vllm_xargs", b"")):
        raise bad_request("`vllm_xargs` cannot carry transfer parameters.", param="vllm_xargs")


def _set(value: Raw | None) -> bool:
    return value is not None and bytes(value) != b"null"


def _needs_whole(fields: dict[str, Raw]) -> bool:
    if any(bytes(fields.get(name, b"null")) not in (b"null", b"false") for name in _WHOLE_WHEN_SET):
        return True
    if any(_set(fields.get(name)) for name in _WHOLE_WHEN_PRESENT):
        return True
    return any(bytes(fields.get(name, b"null")) not in (b"null", b"0", b"1") for name in _MORE_THAN_ONE)


def _check_model(value: Raw | None, served_name: str) -> None:
    # A client that names no model gets the only one there is, as from the engine.
    if value is None or not _set(value):
        return
    try:
        model = msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        raise bad_request("`model` must be a string.", param="model") from None
    if model != served_name:
        raise model_not_found(model)


def _read_count(value: Raw, name: str) -> int | None:
    if not _set(value):
        return None
    try:
        number = msgspec.json.decode(value, type=int)
    except msgspec.DecodeError:
        number = _integral(value, name)
    if number < 0:
        raise bad_request(f"`{name}` must not be negative.", param=name)
    return min(number, _MOST)  # what no engine has room for is calculated with, until the engine refuses it


def _integral(value: Raw, name: str) -> int:
    """A number like `3.0`, which the engine takes for an integer."""
    try:
        number = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        number = 0.5
    if not number.is_integer():
        raise bad_request(f"`{name}` must be an integer.", param=name)
    return int(number)


def _check_messages(value: Raw | None) -> None:
    if value is None or not _set(value):
        raise bad_request("`messages` is required.", param="messages", code="missing_required_parameter")
    inside = bytes(value)
    if inside[:1] != b"[":
        raise bad_request("`messages` must be a list.", param="messages")
    if not inside[1:-1].strip():
        raise bad_request("`messages` must not be empty.", param="messages")


def _check_prompt(fields: dict[str, Raw]) -> bool:
    """Whether the prompt is a batch, which one set of transfer parameters cannot describe."""
    value = fields.get("prompt")
    if value is None or not _set(value):
        if not _set(fields.get("prompt_embeds")):
            raise bad_request("`prompt` is required.", param="prompt", code="missing_required_parameter")
        return True
    inside = bytes(value)
    if inside[:1] == b'"':
        return False
    if inside[:1] != b"[":
        raise bad_request("`prompt` must be a string or a list.", param="prompt")
    first = inside[1:64].lstrip()[:1]
    if first == b"]":
        raise bad_request("`prompt` must not be empty.", param="prompt")
    if first.isdigit():
        return False
    # A list of token ids is one prompt; of strings or lists, a batch.
    try:
        _one_decoder.decode(value)
    except msgspec.ValidationError:  # at the second one: a million are not read to be counted
        return True
    return False


def read_answer(body: bytes) -> EngineAnswer | None:
    """An engine's JSON answer, or None when it is not one."""
    try:
        return _answer_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
