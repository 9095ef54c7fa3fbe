"""A collector: takes OTLP over HTTP as protobuf, on loopback, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
