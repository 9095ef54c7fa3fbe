"""What the gateway counts, as Prometheus text.

Counting happens on the request path, so it is plain integers here; the Prometheus classes are built when scraped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from fulcrum.gateway.metrics.class_metrics import ClassMetrics, Sum, histogram_lines
from fulcrum.gateway.metrics.histogram import PREFIX, Histogram

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text"
OPEN_METRICS_CONTENT_TYPE: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
DEFAULT_CLASS: Final = "default"
"""QoS class of a request that belongs to no other."""

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_END: Final = b"# EOF\n"
_LAG_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)


_OUTCOMES: Final = (
    ("slo", "Requests by how they fared against the promise."),
    ("slo_asked", "Requests that asked for more than the promise, by how they fared against what they asked for."),
)
_SUMS: Final = (
    ("arrived_prompt_tokens", "Prompt length of the requests that came, estimated from their bytes."),
    ("arrived_prompt_tokens_squared", "The same squared, for how much these lengths vary."),
    ("arrived_output_tokens", "Output length expected of them, by what others of their class and prompt length made."),
    ("expected_prompt_tokens", "What had been estimated of the requests that are in prompt_tokens."),
    ("expected_output_tokens", "What was expected, when they ended, of the requests that are in output_tokens."),
)


class Metrics:
    """Everything that is counted; `gauges` of the moment are added by the caller of `render`.

    `labels` stand on every `fulcrum_gateway_` series, so that a cluster's series are found however they are scraped.
    """

    def __init__(
        self,
        *,
        model: str = "",
        labels: Mapping[str, str] | None = None,
        class_names: Sequence[str] = (DEFAULT_CLASS,),
    ) -> None:
        self._model = model
        self._labels = dict(labels or {})
        self.requests: Counter[tuple[str, int, str, str]] = Counter()
        """By route, code, reason (empty when served) and class."""
        self.adapter_requests: Counter[tuple[str, int]] = Counter()
        """By LoRA adapter and code."""
        self.classes: dict[str, ClassMetrics] = {name: ClassMetrics() for name in class_names}
        self.legs: Counter[tuple[str, str]] = Counter()
        """By leg (`prefill`, `decode`, `whole`) and outcome."""
        self.retries: Counter[str] = Counter()
        """By the leg that failed."""
        self.resumes: Counter[str] = Counter()
        """Streams whose worker was lost, by what became of them."""
        self.spared: Counter[str] = Counter()
        """Requests that were not tried on another engine, by why."""
        self.ejections: Counter[str] = Counter()
        """Workers left alone as outliers, by role."""
        self.role_changes: Counter[tuple[str, str]] = Counter()
        self.prewarms: Counter[str] = Counter()
        self.watch_restarts: Counter[str] = Counter()
        self.load_reports: Counter[str] = Counter()
        self.prefix_batches: Counter[str] = Counter()
        """What was sent where, as told to other gateways and heard from them, by what became of it."""
        self.duration_seconds = Histogram(_SECONDS)
        self.prefill_leg_seconds = Histogram(_SECONDS)
        self.role_change_lag_seconds = Histogram(_LAG_SECONDS)
        self.resume_gap_seconds = Histogram(_SECONDS)

    def of_class(self, name: str) -> ClassMetrics:
        """Counts of one class; a new name begins at zero."""
        found = self.classes.get(name)
        if found is None:
            found = self.classes[name] = ClassMetrics()
        return found

    def render(self, gauges: Iterable[Metric], *, open_metrics: bool = False) -> bytes:
        """Prometheus' text format, or OpenMetrics' with exemplars."""
        registry = CollectorRegistry(auto_describe=False)
        families = [*self._families(open_metrics), *self._class_counters(), *gauges]
        for family in families:
            family.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in family.samples]
        registry.register(_Once(families))
        ProcessCollector(registry=registry)
        labels = {**self._labels, "model": self._model}
        histograms = "".join(histogram_lines(self.classes, labels, exemplars=open_metrics)).encode()
        if open_metrics:
            text: bytes = generate_open_metrics(registry)  # type: ignore[no-untyped-call]
            return text.removesuffix(_END) + histograms + _END
        return generate_latest(registry) + histograms

    def _families(self, exemplars: bool) -> Iterator[Metric]:
        yield counter("requests", "Requests answered.", ("route", "code", "reason", "class"), self.requests.items())
        yield counter(
            "adapter_requests", "Requests answered that named a LoRA adapter.", ("adapter", "code"),
            self.adapter_requests.items(),
        )  # fmt: skip
        yield counter("legs", "Requests sent to workers.", ("leg", "outcome"), self.legs.items())
        yield counter("retries", "Attempts repeated on another worker.", ("leg",), _single(self.retries))
        yield counter("resumes", "Streams whose worker was lost in mid-stream.", ("outcome",), _single(self.resumes))
        yield counter("spared", "Requests not tried on another engine.", ("cause",), _single(self.spared))
        yield counter("ejections", "Workers left alone as outliers.", ("role",), _single(self.ejections))
        yield counter("role_changes", "Role changes of workers seen.", ("from", "to"), self.role_changes.items())
        yield counter("prewarms", "Worker pairs tried ahead of requests.", ("outcome",), _single(self.prewarms))
        yield counter(
            "watch_restarts", "Times the Pod watch had to begin again.", ("cause",), _single(self.watch_restarts)
        )
        yield counter("load_reports", "Load reports asked of workers.", ("outcome",), _single(self.load_reports))
        yield counter(
            "prefix_batches", "Messages between gateways about what they sent where.", ("outcome",),
            _single(self.prefix_batches),
        )  # fmt: skip
        yield self.duration_seconds.family(
            "request_duration_seconds", "From a complete request to its answer's end.", exemplars=exemplars
        )
        yield self.prefill_leg_seconds.family("prefill_leg_seconds", "Time of the prefill leg.")
        yield self.resume_gap_seconds.family(
            "resume_gap_seconds", "From the loss of a stream's worker to the next token from another."
        )
        yield self.role_change_lag_seconds.family(
            "role_change_lag_seconds", "From a seen role change to the first request that is sent by it."
        )

    def _class_counters(self) -> Iterator[Metric]:
        model = self._model
        labels = ("class", "model")
        arrivals = [((name, model), counts.arrivals) for name, counts in self.classes.items()]
        yield counter("arrivals", "Requests that came, also the ones that were turned away.", labels, arrivals)
        made = [((name, model), counts.batch_output_tokens) for name, counts in self.classes.items()]
        yield counter("batch_output_tokens", "Output tokens of finished requests of batch classes.", labels, made)
        for attribute, documentation in _SUMS:
            yield summary(
                attribute,
                documentation,
                labels,
                (((name, model), getattr(counts, attribute)) for name, counts in self.classes.items()),
            )
        for attribute, documentation in _OUTCOMES:
            outcomes = [
                ((name, model, outcome.value), count)
                for name, counts in self.classes.items()
                for outcome, count in getattr(counts, attribute).items()
            ]
            yield counter(attribute, documentation, (*labels, "outcome"), outcomes)


def gauge(
    name: str, documentation: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """A gauge with its values now."""
    family = GaugeMetricFamily(PREFIX + name, documentation, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


class _Once(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def counter(
    name: str, documentation: str, labels: Sequence[str], values: Iterable[tuple[tuple[object, ...], float]]
) -> Metric:
    """A counter with its values now."""
    family = CounterMetricFamily(PREFIX + name, documentation, labels=labels)
    for label_values, value in values:
        family.add_metric([str(label) for label in label_values], value)
    return family


def summary(
    name: str, documentation: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], Sum]]
) -> Metric:
    """A sum and a count with their values now."""
    family = SummaryMetricFamily(PREFIX + name, documentation, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value.count, value.sum)
    return family


def _single(counter: Counter[str]) -> Iterator[tuple[tuple[str], int]]:
    return (((label,), count) for label, count in counter.items())
