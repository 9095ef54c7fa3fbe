"""Streams whose events have names: Anthropic's Messages and OpenAI's Responses.

An event is `event: NAME`, then `data: JSON`. In JSON a text has no line feed, so that a name stands where it seems to.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.gateway.api_formats.inference_request import MESSAGES_PATH, MessageEnd, Usage

ERROR: Final = b"event: error\n"
_UNNAMED_ERROR: Final = b'data: {"error"'
_DATA: Final = b"\ndata: "
_MESSAGE: Final = b"event: message_"
_RESPONSE: Final = b"event: response."
_MESSAGE_MARKS: Final = (b"\n" + _MESSAGE, b"\n" + ERROR)
_RESPONSE_MARKS: Final = (
    b"\nevent: response.created\n", b"\nevent: response.in_progress\n", b"\nevent: response.completed\n",
    b"\nevent: response.incomplete\n", b"\nevent: response.failed\n", b"\n" + ERROR,
)  # fmt: skip
_PREFACE: Final = (b"event: response.created\n", b"event: response.in_progress\n")
"""Events that vLLM sends when it has read the request: long before the first token."""
_LAST: Final = (b"event: message_stop\n", b"event: response.completed\n", b"event: response.incomplete\n")
_FAILS: Final = (ERROR, _UNNAMED_ERROR, b"event: response.failed\n")
_OBJECT: Final = b'"response":{'
_STORE: Final = b'"store":false,'


class NamedEvent:
    """What one event says, as far as it is read."""

    __slots__ = ("fails", "last", "shown", "usage")

    def __init__(self, shown: bytes, usage: Usage | None = None, *, fails: bool = False, last: bool = False) -> None:
        self.shown = shown
        """As the client gets it."""
        self.usage = usage
        self.fails = fails
        """The engine fails, or gives the answer up."""
        self.last = last
        """It ends the stream."""


class _MessageDelta(msgspec.Struct):
    delta: MessageEnd | None = None
    usage: Usage | None = None


class _Response(msgspec.Struct):
    usage: Usage | None = None


class _ResponseEvent(msgspec.Struct):
    response: _Response | None = None


_delta_decoder: Final = msgspec.json.Decoder(_MessageDelta)
_response_decoder: Final = msgspec.json.Decoder(_ResponseEvent)


def says_more(path: str, chunks: bytes) -> bool:
    """Whether chunks have events that are to be read; others are parts of the answer."""
    marks = _MESSAGE_MARKS if path == MESSAGES_PATH else _RESPONSE_MARKS
    return any(mark in chunks for mark in marks) or _UNNAMED_ERROR in chunks


def is_preface(body: bytes) -> bool:
    """Whether the events in `body` all come before the first token."""
    return all(event.startswith(_PREFACE) for event in body.split(b"\n\n") if event)


def fails_at_once(body: bytes) -> bool:
    """Whether an error comes before the first token."""
    while body.startswith(_PREFACE):
        body = body.partition(b"\n\n")[2]
    return body.startswith(_FAILS)


def read_named(event: bytes) -> NamedEvent:
    """Read an event, given without the empty line that ends it."""
    if event.startswith(_FAILS):
        return NamedEvent(b"", fails=True)
    data = event[event.find(_DATA) + len(_DATA) :]
    try:
        if event.startswith(b"event: message_delta\n"):
            delta = _delta_decoder.decode(data)
            return NamedEvent(event, delta.usage, fails=delta.delta is None or delta.delta.stop_reason is None)
        if event.startswith(_RESPONSE) and _OBJECT in event:
            read = _response_decoder.decode(data)
            shown = event.replace(_OBJECT, _OBJECT + _STORE, 1)
            usage = None if read.response is None else read.response.usage
            return NamedEvent(shown, usage, last=event.startswith(_LAST))
    except (msgspec.DecodeError, RecursionError):
        return NamedEvent(b"", fails=True)
    return NamedEvent(event, last=event.startswith(_LAST))


def without_store(body: bytes) -> bytes:
    """A response as an engine gave it, which also says that it is not stored."""
    return b"{" + _STORE + body[1:] if body.startswith(b"{") else body
