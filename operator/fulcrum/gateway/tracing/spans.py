"""Traces by the OpenTelemetry SDK: one tree for each sampled request, of one span and one more for each leg."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from fulcrum.gateway.tracing.context import Parent, chosen, header_lines, read_parent, unsampled_lines
from fulcrum.gateway.tracing.export import BoundedQueue, CountedExporter
from fulcrum.gateway.tracing.trace import Attributes, LegSpan, RequestTrace

_NO_PARENT = Context()


class OtlpTracing:
    """Samples requests and sends their spans; `Tracing`."""

    def __init__(self, *, url: str, sampling_ratio: float, resource: Attributes) -> None:
        """`resource`: what is the same for all spans of this process."""
        self._sampling_ratio = sampling_ratio
        self._exporter = CountedExporter(url)
        self._queue = BoundedQueue(self._exporter)
        # Whether a request is sampled is decided here, before the SDK costs anything.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("fulcrum.gateway")

    def begin(self, name: str, headers: Mapping[str, str]) -> RequestTrace:
        """Parent-based: what the client decided counts, and else the ratio."""
        parent = read_parent(headers) if headers else None
        if not (chosen(self._sampling_ratio) if parent is None else parent.sampled):
            return _Unsampled(unsampled_lines(parent))
        return _Sampled(self._tracer, name, parent)

    def counts(self) -> Mapping[str, int]:
        return {
            "exported": self._exporter.exported,
            "failed": self._exporter.failed,
            "dropped": self._queue.dropped,
        }

    async def stop(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)


class _Unsampled:
    """A request without spans; `RequestTrace`."""

    __slots__ = ("headers", "sampled", "trace_id")

    def __init__(self, headers: bytes) -> None:
        self.sampled = False
        self.trace_id = ""
        self.headers = headers

    def leg(self, name: str, attributes: Attributes) -> LegSpan:
        raise AssertionError("not sampled")

    def end(self, attributes: Attributes, failure: str | None) -> None:
        """Nothing is told."""


class _Sampled:
    """A request with spans; `RequestTrace`."""

    __slots__ = ("_context", "_span", "_state", "_tracer", "headers", "sampled", "trace_id")

    def __init__(self, tracer: Tracer, name: str, parent: Parent | None) -> None:
        self.sampled = True
        self.headers = b""
        self._tracer = tracer
        self._state = "" if parent is None else parent.state
        self._span = tracer.start_span(name, _remote(parent), SpanKind.SERVER)
        self.trace_id = f"{self._span.get_span_context().trace_id:032x}"
        self._context = set_span_in_context(self._span, _NO_PARENT)

    def leg(self, name: str, attributes: Attributes) -> LegSpan:
        return _Leg(self._tracer.start_span(name, self._context, SpanKind.CLIENT, attributes), self._state)

    def end(self, attributes: Attributes, failure: str | None) -> None:
        _end(self._span, attributes, failure)


class _Leg:
    """A leg under way; `LegSpan`."""

    __slots__ = ("_span", "headers")

    def __init__(self, span: Span, state: str) -> None:
        self._span = span
        context = span.get_span_context()
        self.headers = header_lines(context.trace_id, context.span_id, state, sampled=True)

    def end(self, attributes: Attributes, failure: str | None) -> None:
        _end(self._span, attributes, failure)


def _remote(parent: Parent | None) -> Context:
    if parent is None:
        return _NO_PARENT
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(trace_id=parent.trace_id, span_id=parent.span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(context), _NO_PARENT)


def _end(span: Span, attributes: Attributes, failure: str | None) -> None:
    span.set_attributes(attributes)
    if failure is not None:
        span.set_attribute("error.type", failure)
        span.set_status(StatusCode.ERROR)
    span.end()
