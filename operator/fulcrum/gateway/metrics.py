"""What the gateway counts, as Prometheus text.

Counting happens on the request path, so it is plain integers here; the Prometheus classes are built when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "fulcrum_gateway_"

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0)
_LAG_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)
_TOKENS: Final = tuple(float(1 << power) for power in range(18))


class Histogram:
    """Cumulative on scrape, one list update per observation."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """As Prometheus wants it."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(_PREFIX + name, documentation, buckets=buckets, sum_value=self._sum)


class Metrics:
    """Everything that is counted; `gauges` of the moment are added by the caller of `render`."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int, str]] = Counter()
        """By route, code and reason (empty when served)."""
        self.legs: Counter[tuple[str, str]] = Counter()
        """By leg (`prefill`, `decode`, `whole`) and outcome."""
        self.retries: Counter[str] = Counter()
        """By the leg that failed."""
        self.role_changes: Counter[tuple[str, str]] = Counter()
        self.prewarms: Counter[str] = Counter()
        self.watch_restarts: Counter[str] = Counter()
        self.duration_seconds = Histogram(_SECONDS)
        self.prefill_leg_seconds = Histogram(_SECONDS)
        self.ttft_seconds = Histogram(_SECONDS)
        self.tpot_seconds = Histogram(_TOKEN_SECONDS)
        self.prompt_tokens = Histogram(_TOKENS)
        self.output_tokens = Histogram(_TOKENS)
        self.role_change_lag_seconds = Histogram(_LAG_SECONDS)

    def render(self, gauges: Iterable[Metric]) -> bytes:
        """Prometheus text exposition."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once([*self._families(), *gauges]))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _families(self) -> Iterator[Metric]:
        yield _counter("requests", "Requests answered.", ("route", "code", "reason"), self.requests.items())
        yield _counter("legs", "Requests sent to workers.", ("leg", "outcome"), self.legs.items())
        yield _counter("retries", "Attempts repeated on another worker.", ("leg",), _single(self.retries))
        yield _counter("role_changes", "Role changes of workers seen.", ("from", "to"), self.role_changes.items())
        yield _counter("prewarms", "Worker pairs tried ahead of requests.", ("outcome",), _single(self.prewarms))
        yield _counter(
            "watch_restarts", "Times the Pod watch had to begin again.", ("cause",), _single(self.watch_restarts)
        )
        yield self.duration_seconds.family("request_duration_seconds", "From a complete request to its answer's end.")
        yield self.prefill_leg_seconds.family("prefill_leg_seconds", "Time of the prefill leg.")
        yield self.ttft_seconds.family("time_to_first_token_seconds", "Streams: from a whole request to first bytes.")
        yield self.tpot_seconds.family(
            "time_per_output_token_seconds", "Streams: time between events, which mostly carry one token each."
        )
        yield self.prompt_tokens.family("prompt_tokens", "Prompt length, as the prefill engine counted it.")
        yield self.output_tokens.family(
            "output_tokens", "Output length: as the engine counted it; of streams, the number of events."
        )
        yield self.role_change_lag_seconds.family(
            "role_change_lag_seconds", "From a seen role change to the first request that is sent by it."
        )


def gauge(
    name: str, documentation: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """A gauge with its values now."""
    family = GaugeMetricFamily(_PREFIX + name, documentation, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


class _Once(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _counter(
    name: str, documentation: str, labels: Sequence[str], values: Iterable[tuple[tuple[object, ...], int]]
) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, documentation, labels=labels)
    for label_values, value in values:
        family.add_metric([str(label) for label in label_values], value)
    return family


def _single(counter: Counter[str]) -> Iterator[tuple[tuple[str], int]]:
    return (((label,), count) for label, count in counter.items())
