"""What the tests of rehearsals share: requests as they were seen, and a small cluster to play them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.simulation.worlds import make_speed

from fulcrum.admission import DEFAULT_CLASS
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import LatencyTargets
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.play import Margins, Stage
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.result import Result
from fulcrum.simulation.seen import Seen
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

SLO = LatencyTargets(ttft_seconds=3.0, tpot_seconds=0.15, attainment=0.9)
SPEED = make_speed(prefill=(0.05, 1.7e-4, 0.0), decode=(0.03, 2e-3, 2e-7), kv_capacity_tokens=60_000)
"""A prompt of 4,000 tokens takes 0.73 s."""
CLUSTER = ClusterModel(pools=(PoolModel(name="p", speed=SPEED),))


def split(prefill: int, decode: int) -> Layout:
    """A layout of the one pool."""
    return Layout.of(prefill={"p": prefill}, decode={"p": decode})


def workers(layout: Layout) -> list[tuple[str, Role]]:
    """One (pool, role) per worker."""
    roles = (Role.PREFILL, Role.DECODE, Role.MIXED)
    return [(pool, role) for role in roles for pool, count in layout.of_role(role) for _ in range(count)]


def make_stage(standing: Layout, **others: Any) -> Stage:
    """A gateway that turns nothing away unless `others` say so."""
    given: dict[str, Any] = {
        "cluster": CLUSTER, "slo": SLO, "admission": AdmissionPolicy.OFF, "classes": (), "queue": None, "margins": (),
    }  # fmt: skip
    return Stage(**(given | others), standing=standing)


def make_seen(
    arrivals: Sequence[float] | NDArray[np.float64],
    *,
    prompt: int | Sequence[int] | NDArray[np.int64] = 100,
    made: int | Sequence[int] | NDArray[np.int64] = 10,
    ended: bool | Sequence[bool] | NDArray[np.bool_] = True,
    refused: bool | Sequence[bool] | NDArray[np.bool_] = False,
    missed: bool | Sequence[bool] | NDArray[np.bool_] = False,
    **load: Any,
) -> Seen:
    """Requests; one value stands for all of them."""
    count = len(arrivals)

    def column(values: Any, kind: type) -> NDArray[Any]:
        return np.broadcast_to(np.asarray(values, dtype=kind), count).copy()

    tokens = column(made, np.int64)
    return Seen(
        load=Workload(
            arrival_seconds=np.asarray(arrivals, dtype=np.float64),
            prompt_tokens=column(prompt, np.int32),
            output_tokens=np.maximum(tokens, 1).astype(np.int32),
            qos_class=np.zeros(count, dtype=np.int16),
            **load,
        ),
        made_tokens=tokens,
        ended=column(ended, np.bool_),
        refused=column(refused, np.bool_),
        missed=column(missed, np.bool_),
    )


class Watched(Fixed):
    """Workers that never change, and what was seen at some times."""

    def __init__(self, layout: Layout, at_seconds: Sequence[float], **others: Any) -> None:
        super().__init__(workers(layout), **others)
        self._at_seconds = list(at_seconds)
        self.seen: list[tuple[float, Seen]] = []

    def on_tick(self, view: View) -> TickResult:
        while self._at_seconds and view.now >= self._at_seconds[0]:
            self.seen.append((self._at_seconds.pop(0), view.seen(0.0)))
        return TickResult(again_seconds=self._at_seconds[0] - view.now if self._at_seconds else None)


def watch(
    load: Workload, layout: Layout, at_seconds: Sequence[float], *, cluster: ClusterModel = CLUSTER, **others: Any
) -> tuple[list[tuple[float, Seen]], Result]:
    """Run a load, and look at it at these times."""
    policy = Watched(layout, at_seconds, **others)
    result = simulate(load, cluster, policy, slo=SLO)
    assert len(policy.seen) == len(at_seconds), "the run was over before"
    return policy.seen, result


def learnt(*margins: float) -> tuple[Margins, ...]:
    """Margins of gateways without classes."""
    return tuple(Margins(ttft={DEFAULT_CLASS: one}, tpot=one) for one in margins)


def two_pools(one: float, other: float) -> ClusterModel:
    """The pools `a` and `b`, so many times as slow as `SPEED` at prefill."""
    pools = [
        PoolModel(name=name, speed=make_speed(prefill=(0.05 * slow, 1.7e-4 * slow, 0.0), decode=(0.03, 2e-3, 2e-7)))
        for name, slow in (("a", one), ("b", other))
    ]
    return replace(CLUSTER, pools=tuple(pools))
