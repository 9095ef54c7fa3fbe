"""The reader of a stream's events: told apart, and what is in them. Compiled (hatch_build.py)."""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.gateway.api_formats.stream_event import Event, decoder

DONE: Final = b"data: [DONE]"
DONE_LINE: Final = b"\n" + DONE
"""The same where it stands in a stream: a text of the answer can have the words, but no line feed before them."""
ERROR: Final = b'data: {"error"'
"""An event that is an error begins with it."""
ABORT: Final = b'"finish_reason":"abort"'
"""Stands in the event of an aborted choice."""
_JSON: Final = b"data: {"
_DATA_BYTES: Final = len(b"data: ")
_SERVER_ERRORS: Final = 500


def events_of(body: bytes) -> list[bytes]:
    """The events that end in `body`, each without the empty line that ends it."""
    return body.split(b"\n\n")[:-1]


def read_event(event: bytes) -> Event | None:
    """What an event says; None for a comment or an end mark. Raises msgspec.DecodeError."""
    if not event.startswith(_JSON):
        return None
    try:
        return decoder.decode(event[_DATA_BYTES:])
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


def read_or_none(event: bytes) -> Event | None:
    """The same; None also for what cannot be read."""
    try:
        return read_event(event)
    except msgspec.DecodeError:
        return None


def fails(event: bytes) -> bool:
    """Whether it is an error of the engine's own making, which another may not make, or an answer that is given up."""
    if event.startswith(ERROR):
        read = read_or_none(event)
        code = read.error.get("code") if read is not None and isinstance(read.error, dict) else None
        return isinstance(code, int) and code >= _SERVER_ERRORS
    return ABORT in event
