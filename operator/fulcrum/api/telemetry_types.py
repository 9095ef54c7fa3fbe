"""`spec.telemetry`: where traces of requests go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

from msgspec import Meta

from fulcrum.api.base import ApiStruct, Rules, rule

DEFAULT_SAMPLING_RATIO: Final = 0.05
"""Share of the requests without a trace of their own that get one: what `benchmarks/gateway.py --tracing` measures."""
_GRPC_PORT: Final = 4317
_TRACES_PATH: Final = "/v1/traces"
_WRITE: Final = "write it as http://collector.monitoring:4318"


class Tracing(ApiStruct, frozen=True, kw_only=True):
    """Traces by OpenTelemetry, sent as OTLP over HTTP."""

    endpoint: Annotated[
        str,
        Meta(
            min_length=8,
            max_length=2048,
            pattern=r"^https?://[^\s@]+$",
            description="URL of a collector, such as http://collector.monitoring:4318; without a path, /v1/traces is "
            "added.",
        ),
    ]
    sampling_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the requests that are traced, of those whose client sent no traceparent; what it "
            "says counts for the others.",
        ),
    ] = DEFAULT_SAMPLING_RATIO
    engine: Annotated[
        bool, Meta(description="vLLM sends spans of its own for the requests that are traced. Replaces workers.")
    ] = False

    rules: ClassVar[Rules] = (
        rule(
            f"!self.endpoint.matches(':{_GRPC_PORT}(/|$)')",
            f"telemetry.tracing.endpoint: port {_GRPC_PORT} is OTLP over gRPC; use the collector's port for OTLP over "
            "HTTP, 4318 by default",
        ),
    )


class Telemetry(ApiStruct, frozen=True, kw_only=True):
    """What is told of single requests."""

    tracing: Annotated[Tracing | None, Meta(description="Traces of requests; absent: none, and they cost nothing.")] = (
        None
    )


def traces_url(endpoint: str) -> str:
    """Return the URL that spans are sent to: OTLP's own path where `endpoint` has none."""
    return endpoint.rstrip("/") + _TRACES_PATH if urlsplit(endpoint).path in ("", "/") else endpoint


def endpoint_problem(endpoint: str) -> str | None:
    """Say what is wrong with an endpoint, and what would be right; None: nothing."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        return f"{error}; {_WRITE}"
    if parts.scheme not in ("http", "https") or not parts.hostname or not endpoint.isprintable() or " " in endpoint:
        return f"{endpoint!r} is no http(s) URL; {_WRITE}"
    if parts.username is not None:
        return f"a URL with a user or password; let a collector beside the gateways add credentials, and {_WRITE}"
    if port == _GRPC_PORT:
        return f"port {_GRPC_PORT} is OTLP over gRPC; use the collector's port for OTLP over HTTP, 4318 by default"
    return None
