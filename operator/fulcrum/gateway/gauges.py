"""What holds at the moment of a scrape, as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric

from fulcrum.admission import Tally
from fulcrum.api.names import Role
from fulcrum.api.reasons import REJECTIONS, Reason
from fulcrum.gateway.config import Settings
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.hold import Hold
from fulcrum.gateway.http.places import Places
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.slow_readers import SlowReaders
from fulcrum.gateway.metrics.counts import counter, gauge
from fulcrum.gateway.tracing.trace import Tracing
from fulcrum.gateway.workers.prewarm import Prewarmer
from fulcrum.gateway.workers.registry import WorkerRegistry


class Scraped(Protocol):
    """A gateway, as far as gauges show it."""

    settings: Settings
    registry: WorkerRegistry
    admission: AdmissionControl
    prewarmer: Prewarmer
    places: Places[Any]
    slow_readers: SlowReaders
    response_budget: ResponseBudget
    gateways: int
    tracing: Tracing | None

    @property
    def hold(self) -> Hold:
        """What waits for workers to start."""

    @property
    def watch_connected(self) -> bool:
        """Whether the Pod watch is up."""


def gauges(gateway: Scraped) -> Iterator[Metric]:
    """Workers, connections, what admission decides and predicts, and pairs that fail."""
    workers = gateway.registry.workers
    by_role = [((role.value,), float(sum(worker.role is role for worker in workers))) for role in Role]
    info = ((gateway.settings.config.served_name, gateway.settings.pod_name), 1.0)
    yield gauge("info", "1 for each gateway that is scraped.", ("model", "pod"), [info])
    yield gauge(
        "sharing", "Gateways that share the traffic and the limits of keys, as this one counts them.", (),
        [((), float(gateway.gateways))],
    )  # fmt: skip
    yield gauge("workers", "Usable workers.", ("role",), by_role)
    in_flight = [((worker.name, worker.role.value), float(worker.in_flight)) for worker in workers]
    yield gauge("worker_in_flight", "Legs under way on each worker.", ("worker", "role"), in_flight)
    of_ranks = [
        ((worker.name, str(rank.state.dp_rank)), float(rank.state.in_flight))
        for worker in workers
        for rank in worker.ranks
        if rank.state.dp_rank is not None
    ]
    yield gauge(
        "worker_rank_in_flight", "Legs under way on each rank of workers with data parallelism.", ("worker", "rank"),
        of_ranks,
    )  # fmt: skip
    known = float(sum(worker.ranks[0].state.engine.known for worker in workers))
    yield gauge("workers_speed_known", "Usable workers whose speed is known.", (), [((), known)])
    yield from _admission(gateway.admission)
    epochs = [((worker.name,), float(worker.record.role_epoch)) for worker in workers]
    yield gauge("worker_role_epoch", "Role epoch by which this gateway routes.", ("worker",), epochs)
    yield gauge("client_connections", "Open client connections.", (), [((), len(gateway.places.open))])
    yield gauge("client_connections_limit", "Most of them at once.", (), [((), gateway.places.most)])
    slow = len(gateway.slow_readers)
    waiting = gateway.response_budget.waiting
    yield gauge("answers_waiting", "Large answers that wait at their engines for room.", (), [((), waiting)])
    yield gauge("slow_readers", "Clients that do not keep up with their answers.", (), [((), slow)])
    yield counter(
        "slow_readers_cut", "Connections cut because the client did not read.", ("cause",),
        [((cause,), number) for cause, number in gateway.slow_readers.cut.items()],
    )  # fmt: skip
    failing = [((pair.prefill, pair.decode), pair.failures) for pair in gateway.prewarmer.report().failing]
    yield gauge(
        "kv_pair_failures", "Canaries in a row that failed, of pairs that fail.", ("prefill", "decode"), failing
    )
    yield gauge("held_requests", "Requests that wait while no worker runs.", (), [((), gateway.hold.held)])
    held = [((outcome,), number) for outcome, number in gateway.hold.outcomes.items()]
    yield counter("held", "Requests that found no worker, by what became of them.", ("outcome",), held)
    yield gauge("prewarms_pending", "Worker pairs still to try.", (), [((), gateway.prewarmer.pending)])
    yield gauge("watch_connected", "Whether the Pod watch is up.", (), [((), gateway.watch_connected)])
    if gateway.tracing is not None:
        spans = [((outcome,), number) for outcome, number in gateway.tracing.counts().items()]
        yield counter("trace_spans", "Spans of traced requests.", ("outcome",), spans)


def _admission(admission: AdmissionControl) -> Iterator[Metric]:
    """Rejections with the load that was turned away, and how good predictions are."""
    core = admission.core
    none = Tally()
    tallies = [
        ((name, reason.value), core.rejected.get((name, reason), none))
        for name in admission.classes.names
        for reason in (*REJECTIONS, Reason.NOTHING_IDLE)
    ]
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
    workers = [views[0] for views in admission.cluster.workers.of_worker.values()]
    yield gauge(
        "worker_breaker_open",
        "1 for a worker that is left alone because it failed, or as an outlier.",
        ("worker",),
        [((worker.worker,), float(not worker.health.breaker.available)) for worker in workers],
    )
    names = admission.classes.names
    yield counter(
        "unpredicted",
        "Requests let in without a prediction, because the speed of a worker was unknown.",
        ("class",),
        [((name,), count) for name, count in zip(names, admission.unpredicted, strict=True)],
    )
    yield counter(
        "degraded",
        "Requests whose answer may have fewer tokens than they ask for, as the cluster was saturated.",
        ("class",),
        [((name,), count) for name, count in zip(names, admission.degraded, strict=True)],
    )
    if (queue := admission.queue) is not None:
        queued = zip(names, queue.waiting, strict=True)
        yield gauge(
            "queued", "Requests in the admission queue.", ("class",), [((name,), count) for name, count in queued]
        )
        yield counter(
            "queue_outcomes",
            "Requests that could not be let in at once, by what became of them.",
            ("class", "outcome"),
            queue.outcomes.items(),
        )
        yield admission.queue_wait_seconds.family(
            "queue_wait_seconds", "Time in the admission queue, of the requests that waited in it."
        )
    # Without a class: one batch serves all of them.
    margins = [(("tpot", ""), core.learnt.tpot_margin)]
    margins += ((("ttft", name), margin) for name, margin in zip(names, core.learnt.ttft_margins, strict=True))
    yield gauge(
        "prediction_margin",
        "How many times longer than predicted a latency is expected to be.",
        ("latency", "class"),
        [(key, margin.factor) for key, margin in margins],
    )
    yield gauge(
        "prediction_error_ratio",
        "Mean of |actual - predicted| over the longer of both, of the last requests.",
        ("latency", "class"),
        [(key, margin.error) for key, margin in margins if margin.samples],
    )
