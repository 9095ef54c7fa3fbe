"""The trace that a client's request belongs to (W3C Trace Context, level 1)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from fulcrum.gateway.tracing.trace import TRACEPARENT, TRACESTATE

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
"""At most the 512 characters that every participant must be able to pass on."""
_SAMPLED: Final = 1

_random: Final = Random(secrets.randbits(64))  # noqa: S311  (ids, not secrets; each process has others)


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The client's span, of which a request is a part."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""


def read_parent(headers: Mapping[str, str]) -> Parent | None:
    """Read the client's span; None where it sent none that can be read."""
    text = headers.get(TRACEPARENT)
    found = None if text is None else _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = headers.get(TRACESTATE, "")
    return Parent(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        sampled=bool(int(flags, 16) & _SAMPLED),
        state=state if _STATE.fullmatch(state) else "",
    )


def new_trace_id() -> int:
    """Return an id that no other trace has."""
    return _random.getrandbits(128) | 1


def new_span_id() -> int:
    """Return an id that no other span of its trace has."""
    return _random.getrandbits(64) | 1


def chosen(ratio: float) -> bool:
    """Whether a request without a parent is one of the share `ratio` that is traced."""
    return _random.random() < ratio


def header_lines(trace_id: int, span_id: int, state: str, *, sampled: bool) -> bytes:
    """Return the lines of a request's head that carry a trace on, each ended by CRLF."""
    lines = b"traceparent: 00-%032x-%016x-%02x\r\n" % (trace_id, span_id, sampled)
    return lines + b"tracestate: %b\r\n" % state.encode("ascii") if state else lines


def unsampled_lines(parent: Parent | None) -> bytes:
    """Return the same for a request that is not traced: with its client's ids, or with ids of no span at all."""
    if parent is not None:
        return header_lines(parent.trace_id, parent.span_id, parent.state, sampled=False)
    return header_lines(new_trace_id(), new_span_id(), "", sampled=False)
