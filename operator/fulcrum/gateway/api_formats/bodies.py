"""Reads bodies: a client's request, an engine's answer. Compiled (hatch_build.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.inference_request import (
    CHAT_PATH,
    COUNT_TOKENS_PATH,
    MESSAGES_PATH,
    POOLING_PATHS,
    RESPONSES_PATH,
    EngineAnswer,
    InferenceRequest,
    LargeFields,
    MessageEnd,
    ServedModel,
    Usage,
)
from fulcrum.gateway.api_formats.judge import GUARDED_FIELDS, Judged, is_set, judge, take_guarded
from fulcrum.gateway.api_formats.judge_messages import judge_messages
from fulcrum.gateway.api_formats.judge_pooling import judge_pooling
from fulcrum.gateway.api_formats.judge_responses import judge_responses
from fulcrum.gateway.api_formats.media import inspect
from fulcrum.gateway.api_formats.media_blocks import inspect_messages
from fulcrum.gateway.errors import RequestError, bad_request, model_not_found

_MOST_FIELDS: Final = 1024
"""Every field is an object in memory: 600,000 of them, in 8 MB, kept the event loop for a second."""
_COUNTED_BYTES: Final = 256 * 1024
"""Bytes outside of the large values whose fields are read before they are counted: at most 50,000, in 10 ms."""

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
_READ_WHOLE_BYTES: Final = 256 * 1024
"""Longest answer that is decoded: 0.3 ms of the event loop."""
_USAGE_MARKS: Final = (b'"usage":{', b'"usage": {')
"""Before the object with the counts. A text has a backslash before each quote, and log-probabilities of a token `usage`
are numbers, so that the last one is it."""
_USAGE_BYTES: Final = 2048
"""Longest such object that is read."""
_JSON: Final = json.JSONDecoder()
_message_decoder: Final = msgspec.json.Decoder(MessageEnd)
_answer_decoder: Final = msgspec.json.Decoder(EngineAnswer)
_encoder: Final = msgspec.json.Encoder()


def read_request(path: str, body: bytes | bytearray, served: ServedModel) -> InferenceRequest:
    """The request that a client's `body` makes. Raises RequestError (400, 404)."""
    for _ in check_body(body):
        pass
    request = read_checked(path, body, served)
    request.measure_media()
    return request


def check_body(body: bytes | bytearray) -> Iterator[None]:
    """Check that reading a body is cheap, and what msgspec does not look at in raw fields. Raises RequestError (400).

    Yields where a large one has kept the event loop long enough.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise bad_request("The body is not valid UTF-8.", code="invalid_json") from None
    yield
    if body.count(b":") > _MOST_FIELDS:
        _check_fields(body)
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


def read_checked(path: str, body: bytes | bytearray, served: ServedModel) -> InferenceRequest:
    """The request that a body makes whose text was checked, its media not yet. Raises RequestError (400, 404)."""
    fields = _decode(_fields_decoder, body)
    if len(fields) > _MOST_FIELDS:
        raise _too_many_fields()
    adapter = _adapter(fields.get("model"), served)
    if not fields.keys().isdisjoint(GUARDED_FIELDS):
        take_guarded(fields)
    if path == MESSAGES_PATH:
        _name_model(fields, served.name)
    judged = _judge(path, fields, served.max_model_len)
    return InferenceRequest(
        path=path,
        fields=fields,
        stream=judged.stream,
        whole=judged.whole,
        max_tokens=judged.max_tokens,
        adapter=adapter,
        pools=served.pools,
        media_urls=served.media_urls,
    )


def _judge(path: str, fields: dict[str, Raw], max_model_len: int | None) -> Judged:
    """Judge the fields of a request by its route. Raises RequestError (400)."""
    if path == MESSAGES_PATH:
        _check_messages(fields.get("messages"))
        return judge_messages(fields, max_model_len=max_model_len)
    if path == RESPONSES_PATH:
        _check_input(fields.get("input"))
        return judge_responses(fields, max_model_len=max_model_len)
    if path in POOLING_PATHS:
        return judge_pooling(path, fields)
    chat = path == CHAT_PATH
    batch = False
    if chat:
        _check_messages(fields.get("messages"))
    else:
        batch = _check_prompt(fields.get("prompt"))
    prompt_bytes = len(memoryview(fields["messages" if chat else "prompt"]))
    judged = judge(fields, chat=chat, prompt_bytes=prompt_bytes, max_model_len=max_model_len)
    judged.whole = judged.whole or batch
    return judged


def read_tokenizing(path: str, body: bytes | bytearray, served: ServedModel) -> bytes:
    """The body that a worker gets of a request to tokenize or detokenize, whose text was checked.

    Raises RequestError (400, 404). A chat is rendered with its media, so the same are refused as in a chat.
    """
    fields = _decode(_fields_decoder, body)
    if len(fields) > _MOST_FIELDS:
        raise _too_many_fields()
    if _adapter(fields.get("model"), served):
        fields["model"] = Raw(_encoder.encode(served.name))  # an adapter has the tokenizer of its model
    if not fields.keys().isdisjoint(GUARDED_FIELDS):
        take_guarded(fields)
    if path == COUNT_TOKENS_PATH:
        _name_model(fields, served.name)
    messages = fields.get("messages")
    if messages is not None and is_set(messages):
        (inspect_messages if path == COUNT_TOKENS_PATH else inspect)(bytes(messages), urls=served.media_urls)
    return _encoder.encode(fields)


def _decode(decoder: msgspec.json.Decoder[Fields], body: bytes | bytearray) -> Fields:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise bad_request("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None


def _check_fields(body: bytes | bytearray) -> None:
    """Refuse what may have so many fields that counting them would take long. Raises RequestError (400).

    Each field has a colon outside of the values that may have many. What is left over counts as fields only where it is
    too long to be read and counted.
    """
    large = _decode(_large_decoder, body)
    values = [memoryview(getattr(large, name)) for name in large.__struct_fields__]
    rest_bytes = len(body) - sum(map(len, values))
    if (
        rest_bytes > _COUNTED_BYTES
        and body.count(b":") - sum(bytes(each).count(b":") for each in values) > _MOST_FIELDS
    ):
        raise _too_many_fields()


def _too_many_fields() -> RequestError:
    return bad_request(f"The body has more than {_MOST_FIELDS} fields.", code="invalid_json")


def _adapter(value: Raw | None, served: ServedModel) -> str:
    """The adapter that a request's `model` names; empty: the model itself. Raises RequestError (400, 404)."""
    # A client that names no model gets the only one there is, as from the engine.
    if value is None or not is_set(value):
        return ""
    try:
        model = msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        raise bad_request("`model` must be a string.", param="model") from None
    if model == served.name:
        return ""
    if model in served.adapters:
        return model
    raise model_not_found(model)


def _name_model(fields: dict[str, Raw], served_name: str) -> None:
    """Fill in the model where the client named none: on Anthropic's routes vLLM asks for one."""
    if not is_set(fields.get("model")):
        fields["model"] = Raw(_encoder.encode(served_name))


def _check_messages(value: Raw | None) -> None:
    if value is None or not is_set(value):
        raise bad_request("`messages` is required.", param="messages", code="missing_required_parameter")
    inside = bytes(value)
    if inside[:1] != b"[":
        raise bad_request("`messages` must be a list.", param="messages")
    if not inside[1:-1].strip():
        raise bad_request("`messages` must not be empty.", param="messages")


def _check_input(value: Raw | None) -> None:
    if value is None or not is_set(value):
        raise bad_request("`input` is required.", param="input", code="missing_required_parameter")
    inside = bytes(value)
    if inside[:1] not in (b'"', b"["):
        raise bad_request("`input` must be a string or a list.", param="input")
    if inside == b'""' or (inside[:1] == b"[" and not inside[1:-1].strip()):
        raise bad_request("`input` must not be empty.", param="input")


def _check_prompt(value: Raw | None) -> bool:
    """Whether the prompt is a batch, which one set of transfer parameters cannot describe."""
    if value is None or not is_set(value):
        raise bad_request("`prompt` is required.", param="prompt", code="missing_required_parameter")
    inside = bytes(value)
    if inside == b'""':
        raise bad_request("`prompt` must not be empty.", param="prompt")
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


def is_aborted(path: str, body: bytes) -> bool:
    """Whether an engine gave up the answer that it sends as whole: its choices are cut anywhere."""
    if path == MESSAGES_PATH:
        try:
            message = _message_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return False
        return message.type == "message" and message.stop_reason is None
    if b'"abort"' not in body:
        return False
    if len(body) > _READ_WHOLE_BYTES:
        return b'"finish_reason":"abort"' in body  # a quote inside of a text would have a backslash before it
    read = read_answer(body)
    return read is not None and any(choice.finish_reason == "abort" for choice in read.choices)


def read_usage(body: bytes) -> Usage | None:
    """The tokens that an engine counted of an answer; None: it does not say. Of a long answer only usage is read."""
    if len(body) <= _READ_WHOLE_BYTES:
        read = read_answer(body)
        return None if read is None else read.usage
    begin = max(body.rfind(mark) + len(mark) - 1 if mark in body else -1 for mark in _USAGE_MARKS)
    if begin < 0:
        return None
    try:
        value, _ = _JSON.raw_decode(body[begin : begin + _USAGE_BYTES].decode("utf-8", "replace"))
        return msgspec.convert(value, Usage)
    except (ValueError, RecursionError):
        return None


def read_answer(body: bytes) -> EngineAnswer | None:
    """An engine's JSON answer, or None when it is not one."""
    try:
        return _answer_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
