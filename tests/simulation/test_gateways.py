"""Several gateways, of which each sees its own requests and the others' in load reports."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest

SPEED = make_speed(kv_capacity_tokens=400_000)


class Watched(StaticSplit):
    """Counts the requests of each gateway, and what it was told that others have."""

    def __init__(self) -> None:
        super().__init__(pool="p", prefill=2, decode=2, admission=AdmissionPolicy.PREDICTIVE)
        self.gateways: list[CountingGateway] = []

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        plain = super().make_gateway(cluster, slo)
        assert plain.admission._shares.gateways == cluster.gateways
        gateway = CountingGateway(
            slo=slo, speeds={"p": SPEED}, policy=AdmissionPolicy.PREDICTIVE, gateways=cluster.gateways
        )
        self.gateways.append(gateway)
        return gateway


class CountingGateway(SimulatedGateway):
    """A gateway that counts."""

    asked = 0
    foreign = 0

    def choose(self, request: SimulatedRequest, now: float) -> Chosen | object | None:  # type: ignore[override]
        self.asked += 1
        self.foreign += any(worker.foreign for worker in self.view.workers.by_name.values())
        return super().choose(request, now)


@pytest.mark.parametrize("gateways", [1, 3])
def test_every_request_is_decided_by_one_gateway_and_only_several_hear_of_others(gateways: int) -> None:
    policy = Watched()
    load = poisson(rate=6, count=900, prompt=1500, output=60, seed=1)
    result = simulate(load, make_cluster(SPEED, gateways=gateways), policy, slo=SLO)
    asked = [gateway.asked for gateway in policy.gateways]
    assert len(asked) == gateways
    assert sum(asked) == len(load)
    assert min(asked) > 0.8 * len(load) / gateways
    assert all((gateway.foreign > 0) == (gateways > 1) for gateway in policy.gateways)
    assert Counter(result.outcome.tolist())[Outcome.PENDING] == 0
    again = simulate(load, make_cluster(SPEED, gateways=gateways), Watched(), slo=SLO)
    assert np.array_equal(result.end_seconds, again.end_seconds)


def test_gateways_that_read_the_load_more_often_spread_prompts_better() -> None:
    loads = [poisson(rate=4, count=900, prompt=6000, output=60, seed=seed) for seed in range(1, 5)]

    def mean_ttft(**cluster: Any) -> float:
        """Of four loads: one alone is 1 % this way or that."""
        policy = StaticSplit(pool="p", prefill=2, decode=2, admission=AdmissionPolicy.OFF)
        runs = [simulate(load, make_cluster(SPEED, **cluster), policy, slo=SLO) for load in loads]
        return float(np.mean([run.ttft_seconds for run in runs]))

    one, often, usual = mean_ttft(), mean_ttft(gateways=3, poll_seconds=0.05), mean_ttft(gateways=3)
    assert often == pytest.approx(one, rel=0.05)
    assert often < 0.95 * usual


@pytest.mark.parametrize("field", ["gateways", "poll_seconds"])
def test_a_cluster_has_a_gateway_that_reads_the_load_now_and_then(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        make_cluster(SPEED, **{field: 0})
