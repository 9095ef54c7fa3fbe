"""Traces of OpenTelemetry: one tree for each sampled request, of one span and one more for each leg.

A span of the SDK that is under way takes 60 microseconds; these become spans of the SDK at their end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from fulcrum.gateway.tracing.context import (
    Parent,
    chosen,
    header_lines,
    new_span_id,
    new_trace_id,
    read_parent,
    unsampled_lines,
)
from fulcrum.gateway.tracing.export import BoundedQueue, CountedExporter
from fulcrum.gateway.tracing.trace import Attributes, LegSpan, RequestTrace

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("fulcrum.gateway")
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)


class OtlpTracing:
    """Samples requests and sends their spans; `Tracing`."""

    def __init__(self, *, url: str, sampling_ratio: float, resource: Attributes) -> None:
        """`resource`: what is the same for all spans of this process."""
        self._sampling_ratio = sampling_ratio
        self._exporter = CountedExporter(url)
        self._queue = BoundedQueue(self._exporter)
        self._resource = Resource.create(resource)
        self._not_chosen = _Unsampled(unsampled_lines(None))
        """Of all requests that are neither sampled nor part of a trace: nothing tells them apart."""

    def begin(self, name: str, headers: Mapping[str, str]) -> RequestTrace:
        """Parent-based: what the client decided counts, and else the ratio."""
        parent = read_parent(headers) if headers else None
        if parent is None:
            if not chosen(self._sampling_ratio):
                return self._not_chosen
        elif not parent.sampled:
            return _Unsampled(unsampled_lines(parent))
        return _Sampled(self._queue, self._resource, name, parent)

    def counts(self) -> Mapping[str, int]:
        return {
            "exported": self._exporter.exported,
            "failed": self._exporter.failed,
            "dropped": self._queue.dropped,
        }

    async def stop(self) -> None:
        await asyncio.to_thread(self._queue.shutdown)


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


class _Span:
    """A span under way."""

    __slots__ = ("_attributes", "_context", "_kind", "_name", "_parent", "_queue", "_resource", "_started_at")

    def __init__(
        self,
        queue: BoundedQueue,
        resource: Resource,
        name: str,
        kind: SpanKind,
        *,
        trace_id: int,
        parent: SpanContext | None,
        attributes: Attributes,
    ) -> None:
        self._queue = queue
        self._resource = resource
        self._name = name
        self._kind = kind
        self._parent = parent
        self._attributes = attributes
        self._context = SpanContext(trace_id, new_span_id(), is_remote=False, trace_flags=_SAMPLED)
        self._started_at = time.time_ns()

    def end(self, attributes: Attributes, failure: str | None) -> None:
        told = self._attributes | attributes
        if failure is not None:
            told["error.type"] = failure
        self._queue.on_end(
            ReadableSpan(
                name=self._name,
                context=self._context,
                parent=self._parent,
                resource=self._resource,
                attributes=told,
                kind=self._kind,
                status=_UNSET if failure is None else _ERROR,
                start_time=self._started_at,
                end_time=time.time_ns(),
                instrumentation_scope=_SCOPE,
            )
        )


class _Sampled(_Span):
    """A request with spans; `RequestTrace`."""

    __slots__ = ("_state", "headers", "sampled", "trace_id")

    def __init__(self, queue: BoundedQueue, resource: Resource, name: str, parent: Parent | None) -> None:
        trace_id = new_trace_id() if parent is None else parent.trace_id
        super().__init__(
            queue,
            resource,
            name,
            SpanKind.SERVER,
            trace_id=trace_id,
            parent=None if parent is None else SpanContext(trace_id, parent.span_id, is_remote=True),
            attributes={},
        )
        self.sampled = True
        self.headers = b""
        self.trace_id = f"{trace_id:032x}"
        self._state = "" if parent is None else parent.state

    def leg(self, name: str, attributes: Attributes) -> LegSpan:
        return _Leg(self._queue, self._resource, name, self._context, attributes, state=self._state)


class _Leg(_Span):
    """A leg under way; `LegSpan`."""

    __slots__ = ("headers",)

    def __init__(
        self,
        queue: BoundedQueue,
        resource: Resource,
        name: str,
        parent: SpanContext,
        attributes: Attributes,
        *,
        state: str,
    ) -> None:
        super().__init__(
            queue, resource, name, SpanKind.CLIENT, trace_id=parent.trace_id, parent=parent, attributes=attributes
        )
        self.headers = header_lines(parent.trace_id, self._context.span_id, state, sampled=True)
