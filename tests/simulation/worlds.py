"""Speeds, clusters and workloads that the tests of the simulator share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.api.names import Role
from fulcrum.api.serving_types import ClassMatch, QosClass
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.policy import Policy, known_speeds
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.workload import Workload

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.05, attainment=0.95)


def qos_classes(**priorities: int) -> tuple[QosClass, ...]:
    """Classes by name and priority."""
    return tuple(
        QosClass(name=name, priority=priority, match=ClassMatch(header="x-tier", value=name))
        for name, priority in priorities.items()
    )


class Tiered(Policy):
    """Workers that never change, behind a gateway that knows classes and turns nobody away."""

    def __init__(self, workers: Policy, classes: Sequence[QosClass]) -> None:
        self.name = workers.name
        self._workers = workers
        self._classes = classes

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers.initial(cluster)

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        return SimulatedGateway(slo=slo, speeds=known_speeds(cluster), classes=self._classes)


def make_speed(
    *,
    prefill: tuple[float, float, float] = (0.01, 4e-5, 1e-9),
    decode: tuple[float, float, float] = (0.01, 1e-4, 5e-8),
    kv_capacity_tokens: int = 200_000,
    **others: Any,
) -> WorkerSpeed:
    """A worker like a 70B model on two H100."""
    coefficients = SpeedCoefficients(
        prefill_a=prefill[0], prefill_b=prefill[1], prefill_c=prefill[2],
        decode_a=decode[0], decode_b=decode[1], decode_c=decode[2],
    )  # fmt: skip
    return WorkerSpeed(coefficients=coefficients, kv_capacity_tokens=kv_capacity_tokens, **others)


def make_cluster(speed: WorkerSpeed | None = None, *, start_seconds: float = 30.0, **others: Any) -> ClusterModel:
    """One pool `p`."""
    pool = PoolModel(name="p", speed=speed or make_speed(), start_seconds=start_seconds)
    return ClusterModel(pools=(pool,), **others)


def make_workload(requests: list[tuple[float, int, int]], **others: Any) -> Workload:
    """From (arrival, prompt, output) in order of arrival."""
    return Workload(
        arrival_seconds=np.array([r[0] for r in requests], dtype=np.float64),
        prompt_tokens=np.array([r[1] for r in requests], dtype=np.int32),
        output_tokens=np.array([r[2] for r in requests], dtype=np.int32),
        qos_class=np.zeros(len(requests), dtype=np.int16),
        **others,
    )


def in_classes(load: Workload, names: Sequence[str]) -> Workload:
    """Put each request into the class of this name."""
    classes = tuple(sorted(set(names)))
    return replace(load, qos_class=np.array([classes.index(name) for name in names], dtype=np.int16), classes=classes)


def poisson(*, rate: float, count: int, prompt: float, output: float, seed: int, spread: float = 0.5) -> Workload:
    """Poisson arrivals with log-normal lengths."""
    random = np.random.default_rng(seed)

    def lengths(mean: float) -> np.ndarray[Any, np.dtype[np.int32]]:
        drawn = random.lognormal(np.log(mean) - spread**2 / 2, spread, count)
        return np.maximum(1, np.round(drawn)).astype(np.int32)

    return Workload(
        arrival_seconds=np.cumsum(random.exponential(1 / rate, count)),
        prompt_tokens=lengths(prompt),
        output_tokens=lengths(output),
        qos_class=np.zeros(count, dtype=np.int16),
    )
