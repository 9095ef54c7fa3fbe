"""What a trace is to the code that serves a request; nothing here needs the OpenTelemetry SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from fulcrum.gateway.errors import RequestError

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
KEPT_HEADERS: Final = frozenset((TRACEPARENT.encode(), TRACESTATE.encode()))
"""Headers of a request that are read for its trace."""

Attributes = dict[str, str | bool | int | float]
"""What a span says. No text of a prompt or an answer."""


class LegSpan(Protocol):
    """One leg that is under way."""

    headers: bytes
    """Lines of the request's head by which the engine's own spans become its children, each ended by CRLF."""

    def end(self, attributes: Attributes, failure: str | None) -> None:
        """The leg is over; `failure`: how it failed."""


class RequestTrace(Protocol):
    """The trace of one request."""

    sampled: bool
    """Its spans are wanted."""
    trace_id: str
    """As 32 hexadecimal digits; empty where it is not sampled."""
    headers: bytes
    """For legs of a request that is not sampled: they keep the engine from starting a trace of its own."""

    def leg(self, name: str, attributes: Attributes) -> LegSpan:
        """Begin the span of a leg of a sampled request."""

    def end(self, attributes: Attributes, failure: str | None) -> None:
        """The request is over; `failure`: the type of its error."""


class Tracing(Protocol):
    """Traces of all requests of a gateway."""

    def begin(self, name: str, headers: Mapping[str, str]) -> RequestTrace:
        """Begin the trace of a request."""

    def counts(self) -> Mapping[str, int]:
        """Spans so far by what became of them."""

    async def stop(self) -> None:
        """Send what is left, for a bounded time."""


def failure_type(error: RequestError | None) -> str | None:
    """OpenTelemetry's `error.type` of a refusal: its reason, else its status."""
    if error is None:
        return None
    return error.reason.value if error.reason is not None else str(error.status.value)
