"""`GET /metrics` of the agent, in Prometheus' text format. What is unknown has no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, WorkerConfig
from fulcrum_worker.state import WorkerState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Snapshot(Collector):
    """Serves what was gathered before: prometheus_client collects synchronously, the agent scrapes vLLM otherwise."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def metrics_page(config: WorkerConfig, state: WorkerState, report: LoadReport) -> bytes:
    """Renders the agent's metrics from its state and one load report."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(_families(config, state, report)))
    return generate_latest(registry)


def _families(config: WorkerConfig, state: WorkerState, report: LoadReport) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "fulcrum_worker",
        "The worker.",
        value={
            "cluster": config.cluster,
            "pool": config.pool,
            "model": config.served_name,
            "accelerator": config.accelerator,
        },
    )
    roles = GaugeMetricFamily("fulcrum_worker_role", "1 for the role that the worker has.", labels=["role"])
    for role in Role:
        roles.add_metric([role.value], float(role is report.role))
    yield roles
    yield GaugeMetricFamily("fulcrum_worker_role_epoch", "Number of the worker's role change.", report.role_epoch)
    yield GaugeMetricFamily("fulcrum_worker_ready", "1 when the worker can serve.", float(report.ready))
    yield GaugeMetricFamily("fulcrum_worker_draining", "1 while the worker drains.", float(report.draining))
    yield CounterMetricFamily("fulcrum_worker_drains", "Drains begun.", state.drains)
    yield GaugeMetricFamily("fulcrum_worker_engine_up", "1 while vLLM's process lives.", float(state.engine_alive))
    yield from _known_gauge(
        "fulcrum_worker_engine_start_seconds", "From starting vLLM to its first answer.", state.engine_start_seconds
    )
    yield from _known_gauge("fulcrum_worker_measure_seconds", "What measuring the engine took.", state.measure_seconds)
    yield from _known_gauge(
        "fulcrum_worker_kv_held_ratio",
        "Fraction of KV blocks held for a decode engine that has not pulled them yet; absent while it cannot be told.",
        report.kv_held_for_peers,
    )
    yield from _known_gauge(
        "fulcrum_worker_kv_capacity_tokens", "Tokens that the KV cache holds.", report.kv_capacity_tokens
    )
    yield from _known_gauge(
        "fulcrum_worker_expert_balance",
        "Tokens of a GPU's experts on average over those of the busiest GPU, 0 to 1; absent where vLLM logs none.",
        state.expert_balance(),
    )
    yield from _counters(report)
    if state.speed is not None:
        speed = GaugeMetricFamily(
            "fulcrum_worker_speed_coefficient_seconds",
            "Fitted engine speed: prefill a + b*sum(l) + c*sum(l^2), decode step a + b*batch + c*sum(context).",
            labels=["coefficient"],
        )
        for name in ("prefill_a", "prefill_b", "prefill_c", "decode_a", "decode_b", "decode_c"):
            speed.add_metric([name], getattr(state.speed, name))
        yield speed


def _counters(report: LoadReport) -> Iterator[Metric]:
    """vLLM's counters of transfers and progress: what the watchdogs judge by, under one name for every vLLM."""
    prefix = "fulcrum_worker_kv"
    if (transfers := report.transfers) is not None:
        yield CounterMetricFamily(
            f"{prefix}_failed_transfers", "Pulls of KV that failed on this worker.", transfers.failed_transfers
        )
        yield CounterMetricFamily(
            f"{prefix}_failed_notifications",
            "Of these, notifications that a pull has ended.",
            transfers.failed_notifications,
        )
        yield CounterMetricFamily(
            f"{prefix}_expired_requests", "Prompts whose KV no peer pulled in time.", transfers.expired_requests
        )
        yield CounterMetricFamily(
            f"{prefix}_pulled_tokens", "Prompt tokens whose KV was pulled from a peer.", transfers.pulled_tokens
        )
    if (residency := report.residency) is not None:
        for tier, held, evicted in (
            ("device", residency.device_tokens, residency.device_evicted_tokens),
            ("host", residency.host_tokens, residency.host_evicted_tokens),
        ):
            yield GaugeMetricFamily(
                f"{prefix}_{tier}_tokens", f"Tokens whose KV is there to be used again: {tier}.", held
            )
            yield CounterMetricFamily(
                f"{prefix}_{tier}_evicted_tokens", f"Tokens whose KV was driven out: {tier}.", evicted
            )
    if (progress := report.progress) is not None:
        yield CounterMetricFamily("fulcrum_worker_engine_steps", "Engine steps that made tokens.", progress.steps)
        yield CounterMetricFamily("fulcrum_worker_engine_tokens", "Tokens taken in and made.", progress.tokens)


def _known_gauge(name: str, documentation: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, documentation, value)
