"""What a front counts, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from fulcrum.gateway.metrics.histogram import Histogram

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_PREFIX: Final = "fulcrum_front_"


class FrontMetrics:
    """Counters of one front. `labels` are on every series."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By model, cluster that answered (empty: none) and status."""
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()
        """By model, cluster that did not serve, and why: the status, or how the connection failed."""
        self.duration_seconds = Histogram(_SECONDS)
        self.models = 0

    def render(self) -> bytes:
        """All of it in Prometheus' text format."""
        return "".join(self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests answered.")
        for (model, cluster, code), count in self.requests.items():
            yield self._sample("requests_total", count, model=model, cluster=cluster, code=str(code))
        yield from _head(
            "fallbacks_total", "counter", "Requests that a cluster did not take, so that another was asked."
        )
        for (model, cluster, why), count in self.fallbacks.items():
            yield self._sample("fallbacks_total", count, model=model, cluster=cluster, why=why)
        yield from _head("models", "gauge", "Models that are served.")
        yield self._sample("models", self.models)
        yield from _head("request_duration_seconds", "histogram", "From a complete request to its answer's end.")
        yield from self.duration_seconds.lines(_PREFIX + "request_duration_seconds", _pairs(self._labels))

    def _sample(self, name: str, value: int, **labels: str) -> str:
        return f"{_PREFIX}{name}{{{_pairs({**self._labels, **labels})}}} {value}\n"


def _head(name: str, kind: str, documentation: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {documentation}\n", f"# TYPE {_PREFIX}{name} {kind}\n"


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
