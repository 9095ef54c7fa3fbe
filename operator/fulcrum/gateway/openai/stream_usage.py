"""Token counts of streams: every engine is asked for them, and a client that did not ask does not see them.

An event may hold any number of tokens (`stream_interval`, speculative decoding), so events are never counted as tokens
where the engine says how many there were.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload
from fulcrum.gateway.openai.inference_request import InferenceRequest, Usage

_USAGE: Final = Raw(b'{"include_usage":true}')
_MARK: Final = b'"usage"'
_FIELD: Final = "stream_options"


class _Closing(msgspec.Struct):
    choices: list[Raw] | None = None
    usage: Usage | None = None


class _Options(msgspec.Struct):
    include_usage: bool | None = None


def ask_for_usage(request: InferenceRequest) -> bool:
    """Ask the engine to close the stream of `request` with its usage; True: the client did not, and must not see it."""
    options = request.fields.get(_FIELD)
    if options is not None and bytes(options) != b"null":
        try:
            if msgspec.json.decode(options, type=_Options).include_usage:
                return False
        except msgspec.DecodeError:
            return False  # for the engine to refuse
    request.fields[_FIELD] = _USAGE
    return True


def take_usage(chunks: bytes, *, hide: bool) -> tuple[bytes, Usage | None]:
    """A piece from the end of a stream, as the client shall see it, and the usage in it."""
    if _MARK not in chunks:
        return chunks, None
    usage: Usage | None = None
    shown = []
    for event in payload(chunks).split(b"\n\n")[:-1]:
        if _MARK in event and event.startswith(b"data: {"):
            closing = _read(event[6:])
            usage = closing.usage or usage
            if hide and closing.usage is not None and not closing.choices:
                continue
        shown.append(event + b"\n\n")
    if usage is None or not hide:
        return chunks, usage
    rest = chunk(b"".join(shown)) if shown else b""
    return rest + LAST_CHUNK if chunks.endswith(LAST_CHUNK) else rest, usage


def _read(event: bytes) -> _Closing:
    try:
        return msgspec.json.decode(event, type=_Closing)
    except (msgspec.DecodeError, RecursionError):
        return _Closing()
