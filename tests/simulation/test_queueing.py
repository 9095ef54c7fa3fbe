"""Where the model reduces to a queue of the textbooks, it gives their waiting times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.balance.demand import Slo
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.front_door import Chosen
from fulcrum.simulation.job import Job
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

COUNT = 120_000
TOKENS = 100_000
"""Prompt tokens of one second of service: enough for whole numbers to be as good as real ones."""


class OneServer(Aggregated):
    """One worker and nobody in front of it."""

    def front_door(self, cluster: ClusterModel, slo: Slo) -> None:
        return None

    def route(self, request: Job, view: View) -> Chosen:
        return Chosen(view.workers[0], view.workers[0])


def workload(rate: float, prompts: np.ndarray, outputs: np.ndarray, random: np.random.Generator) -> Workload:
    return Workload(
        arrival_seconds=np.cumsum(random.exponential(1 / rate, COUNT)),
        prompt_tokens=np.maximum(1, prompts).astype(np.int32),
        output_tokens=np.maximum(1, outputs).astype(np.int32),
        qos_class=np.zeros(COUNT, dtype=np.int16),
    )


def mean_sojourn(load: Workload, *, servers: int, prefill_b: float, decode_a: float) -> float:
    """Mean time in the system; the first tenth, in which the queue fills, is left out."""
    speed = make_speed(
        prefill=(0.0, prefill_b, 0.0),
        decode=(decode_a, 0.0, 0.0),
        kv_capacity_tokens=10**9,
        max_batch=servers,
        max_batched_tokens=10**9,
    )
    result = simulate(load, make_cluster(speed), OneServer(pool="p", workers=1), slo=SLO)
    sojourn = result.end_seconds - load.arrival_seconds
    return float(sojourn[COUNT // 10 :].mean())


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_with_exponential_prompts_is_m_m_1(utilisation: float) -> None:
    random = np.random.default_rng(1)
    load = workload(utilisation, random.exponential(TOKENS, COUNT), np.ones(COUNT), random)
    measured = mean_sojourn(load, servers=1, prefill_b=1 / TOKENS, decode_a=0.0)
    assert measured == pytest.approx(1 / (1 - utilisation), rel=0.04)


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_with_equal_prompts_is_m_d_1(utilisation: float) -> None:
    random = np.random.default_rng(2)
    load = workload(utilisation, np.full(COUNT, TOKENS), np.ones(COUNT), random)
    measured = mean_sojourn(load, servers=1, prefill_b=1 / TOKENS, decode_a=0.0)
    assert measured == pytest.approx(1 + utilisation / (2 * (1 - utilisation)), rel=0.03)


@pytest.mark.parametrize(("servers", "utilisation"), [(2, 0.6), (8, 0.85)])
def test_a_batch_whose_steps_cost_the_same_is_m_m_k(servers: int, utilisation: float) -> None:
    random = np.random.default_rng(3)
    steps, step_seconds = 2000, 1 / 2000
    load = workload(servers * utilisation, np.ones(COUNT), random.geometric(1 / steps, COUNT), random)
    measured = mean_sojourn(load, servers=servers, prefill_b=0.0, decode_a=step_seconds)
    assert measured == pytest.approx(
        1 + erlang_c(servers, servers * utilisation) / (servers * (1 - utilisation)), rel=0.04
    )


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/k."""
    below = sum(offered**n / math.factorial(n) for n in range(servers))
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return full / (below + full)
