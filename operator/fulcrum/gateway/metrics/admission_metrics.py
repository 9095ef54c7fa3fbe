"""What admission decides and predicts, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.metrics.counts import counter, gauge


def admission_metrics(admission: AdmissionControl) -> Iterator[Metric]:
    """Rejections with the load that was turned away, and how good predictions are."""
    core = admission.core
    tallies = [((name, reason.value), tally) for (name, reason), tally in core.rejected.items()]
    labels = ("class", "reason")
    yield counter("rejected", "Requests turned away.", labels, [(key, tally.requests) for key, tally in tallies])
    yield counter(
        "rejected_prompt_tokens",
        "Prompt tokens turned away, as estimated.",
        labels,
        [(key, tally.prompt_tokens) for key, tally in tallies],
    )
    yield counter(
        "rejected_output_tokens",
        "Output tokens turned away, as expected.",
        labels,
        [(key, tally.output_tokens) for key, tally in tallies],
    )
    workers = admission.cluster.workers.values()
    yield gauge(
        "worker_breaker_open",
        "1 for a worker that is left alone because it failed, or as an outlier.",
        ("worker",),
        [((worker.name,), float(not worker.breaker.available)) for worker in workers],
    )
    names = admission.classes.names
    yield counter(
        "unpredicted",
        "Requests let in without a prediction, because the speed of a worker was unknown.",
        ("class",),
        [((name,), count) for name, count in zip(names, admission.unpredicted, strict=True)],
    )
    yield counter(
        "admitted_late",
        "Requests let in though predicted to be late: too long for the promise on any worker, or postponed in vain.",
        ("class",),
        [((name,), count) for name, count in zip(names, core.admitted_late, strict=True)],
    )
    yield counter(
        "postponed",
        "Requests that had to wait at the gateway, until the queues suited them better or their class had its turn.",
        ("class",),
        [((name,), count) for name, count in zip(names, core.postponed, strict=True)],
    )
    yield gauge("waiting", "Postponed requests that wait at the gateway now.", (), [((), float(core.waiting))])
    margins = (("ttft", core.ttft_margin), ("tpot", core.tpot_margin))
    yield gauge(
        "prediction_margin",
        "How many times longer than predicted a latency is expected to be.",
        ("latency",),
        [((latency,), margin.factor) for latency, margin in margins],
    )
    yield gauge(
        "prediction_error_ratio",
        "Mean of |actual - predicted| / actual over the last requests.",
        ("latency",),
        [((latency,), margin.error) for latency, margin in margins if margin.samples],
    )
