"""Request bodies: what the gateway must know of them, and the bodies of the two legs (REFERENCES, section 2).

Fields stay raw JSON: the prompt is never decoded, only carried.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.errors import RequestError, bad_request, model_not_found

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"

_PREFILL_PARAMS: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_EMPTY: Final = Raw(b"")
_COMPLETION_TOKENS: Final = 16
_MOST: Final = 1 << 31
# Connector fields name a peer to read KV from: from a client they would read someone's KV, or any host.
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

_fields_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_encoder: Final = msgspec.json.Encoder()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request."""

    path: str
    fields: dict[str, Raw]
    """The client's body, without connector fields."""
    stream: bool
    whole: bool
    """The two-leg protocol cannot carry it: prefill and decode on one worker."""
    max_tokens: int | None = None
    """Most output tokens of each sequence; None: as many as the model's length leaves."""

    @property
    def prompt(self) -> Raw:
        """What the prompt is made of, undecoded; empty for a prompt that came as embeddings."""
        return self.fields.get("messages" if self.path == CHAT_PATH else "prompt") or _EMPTY

    @property
    def tool_bytes(self) -> int:
        """Bytes of the tools, which become a part of the prompt."""
        tools = self.fields.get("tools")
        return 0 if tools is None else len(bytes(tools))

    def whole_body(self) -> bytes:
        """Body of a request in one leg."""
        return _encoder.encode(self.fields)

    def prefill_body(self) -> bytes:
        """Body of the prefill leg: one token, not streamed, KV kept for a peer."""
        fields = self.fields.copy()
        fields["max_tokens"] = _ONE
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = _ONE
        if self.stream:
            fields["stream"] = _FALSE
        fields.pop("stream_options", None)
        fields.pop("min_tokens", None)
        fields.pop("return_token_ids", None)  # nobody reads them in this answer
        fields["kv_transfer_params"] = _PREFILL_PARAMS
        return _encoder.encode(fields)

    def decode_body(self, kv_transfer_params: Raw | None) -> bytes:
        """Body of the decode leg; without parameters the decode worker computes the prompt itself."""
        if kv_transfer_params is None:
            return self.whole_body()
        return _encoder.encode({**self.fields, "kv_transfer_params": kv_transfer_params})


class Usage(msgspec.Struct, frozen=True):
    """Token counts that an engine reports."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class EngineAnswer(msgspec.Struct, frozen=True):
    """The part of an engine's JSON answer that the gateway reads."""

    usage: Usage | None = None
    kv_transfer_params: Raw = Raw(b"null")

    @property
    def usable_kv(self) -> Raw | None:
        """Parameters for the decode leg; None when the engine gave none."""
        return self.kv_transfer_params if bytes(self.kv_transfer_params).startswith(b"{") else None


_answer_decoder: Final = msgspec.json.Decoder(EngineAnswer)


def read_answer(body: bytes) -> EngineAnswer | None:
    """An engine's JSON answer, or None when it is not one."""
    try:
        return _answer_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_job(path: str, body: bytes, served_name: str) -> Job:
    """The job that a client's `body` asks for. Raises RequestError (400, 404)."""
    fields = _decode_fields(body)
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
    return Job(
        path=path,
        fields=fields,
        stream=stream is not None and bytes(stream) == b"true",
        whole=whole,
        max_tokens=max_tokens,
    )


def _decode_fields(body: bytes) -> dict[str, Raw]:
    try:
        # msgspec does not look inside strings of raw fields, but the engine would.
        body.decode()
        if 0x5C in body and (b"\\ud" in body or b"\\uD" in body):
            msgspec.json.decode(body)  # refuses half a surrogate pair
        return _fields_decoder.decode(body)
    except UnicodeDecodeError:
        raise bad_request("The body is not valid UTF-8.", code="invalid_json") from None
    except msgspec.ValidationError:
        raise bad_request("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None


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
    return len(msgspec.json.decode(value, type=list[Raw])) != 1


__all__ = ["CHAT_PATH", "COMPLETIONS_PATH", "EngineAnswer", "Job", "RequestError", "Usage", "read_answer", "read_job"]
