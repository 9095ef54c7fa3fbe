"""Between which pools moving KV takes a clear part of the TTFT promise, as gateways have learnt it."""

from __future__ import annotations

from collections.abc import Iterable

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.types import ConditionType, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.measurements import Measurements, learnt_transfers
from fulcrum.decide.snapshot import ObservedWorker

_SAID = "KV from prefill pool {} to decode pool {} takes more than a tenth of spec.slo.ttft."


def slow_transfers(
    spec: InferenceClusterSpec,
    status: InferenceClusterStatus,
    measurements: Measurements,
    workers: Iterable[ObservedWorker],
) -> str:
    """Return what to say of them and what to do; empty where there are none.

    For a prompt of the mean length, nothing of it cached. What is said stays until half of a tenth is enough.
    """
    traffic = measurements.traffic
    if traffic is None or traffic.isl_tokens is None:
        return ""
    before = next((each.message for each in status.conditions if each.type is ConditionType.PROGRESSING), "")
    roles = {(worker.pool, worker.role) for worker in workers if worker.ready and not worker.deleting}
    slow = []
    for (prefill, decode), cost in sorted(learnt_transfers(measurements.pairs).items()):
        said = _SAID.format(prefill, decode)
        limit = seconds(spec.slo.ttft) / 10 / (2 if said in before else 1)
        serve = (prefill, Role.PREFILL) in roles and (decode, Role.DECODE) in roles
        if serve and cost.seconds(traffic.isl_tokens) > limit:
            slow.append(said)
    if not slow:
        return ""
    return " ".join(
        [
            *slow,
            "Give the pools RDMA (spec.pools[].rdma), or nodes near each other; or let each worker do both (roles: "
            "[mixed]).",
        ]
    )
