"""A collector: takes OTLP over HTTP as protobuf, on loopback, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.machine import eventually

from fulcrum.api.gateway import GatewayTracing


@dataclass(frozen=True)
class Received:
    """One span as the collector got it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What came."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    spans: list[Received] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += [
                    Received(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        kind=span.kind,
                        failed=span.status.code == 2,
                        attributes=_attributes(span.attributes),
                        resource=resource,
                    )
                    for span in scope.spans
                ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def well(handler: BaseHTTPRequestHandler) -> None:
    """Answer as a collector does that took everything."""
    handler.send_response(200)
    handler.send_header("content-length", "0")
    handler.end_headers()


@contextmanager
def collecting(answer: Callable[[BaseHTTPRequestHandler], None] = well) -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            answer(self)

        def log_message(self, *arguments: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def traced(collector: Collector, ratio: float = 1.0) -> dict[str, Any]:
    """Configuration of a gateway that sends its spans there."""
    return {"tracing": GatewayTracing(endpoint=collector.url, sampling_ratio=ratio)}


async def spans_of(collector: Collector, number: int) -> dict[str, Received]:
    """Spans by name, when so many have come."""
    await eventually(lambda: len(collector.spans) >= number, seconds=60, what=f"{number} spans")
    assert len(collector.spans) == number
    return {span.name: span for span in collector.spans}
