"""Where the model reduces to a queue of the textbooks, it gives their waiting times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, qos_classes

from fulcrum.load.demand import Slo
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

COUNT = 120_000
TOKENS = 100_000
"""Prompt tokens of one second of service: enough for whole numbers to be as good as real ones."""


class OneServer(Aggregated):
    """One worker, no gateway in front of it."""

    def make_gateway(self, cluster: ClusterModel, slo: Slo) -> None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen:
        return Chosen(view.workers[0], view.workers[0])


class PriorityGateway(SimulatedGateway):
    """Sends everything to the one worker; only what it tells of classes counts."""

    def choose(self, request: SimulatedRequest, now: float) -> Chosen:
        (worker,) = self._workers.values()
        return Chosen(worker, worker)

    def prefilled(self, request: SimulatedRequest, now: float) -> None:
        pass


class OnePriorityServer(Aggregated):
    """One worker, and classes in front of it."""

    def make_gateway(self, cluster: ClusterModel, slo: Slo) -> SimulatedGateway:
        return PriorityGateway(slo=slo, speeds={}, classes=qos_classes(premium=2, free=1))


def workload(rate: float, prompts: np.ndarray, outputs: np.ndarray, random: np.random.Generator) -> Workload:
    count = len(prompts)
    return Workload(
        arrival_seconds=np.cumsum(random.exponential(1 / rate, count)),
        prompt_tokens=np.maximum(1, prompts).astype(np.int32),
        output_tokens=np.maximum(1, outputs).astype(np.int32),
        qos_class=np.zeros(count, dtype=np.int16),
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


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_by_class_is_m_m_1_with_priorities_that_do_not_interrupt(utilisation: float) -> None:
    """Mean waits of Cobham: W0 / (1 - s1) and W0 / ((1 - s1)(1 - s1 - s2)), with W0 the work under way at an arrival.

    The wait of the lower class varies so much that 4 % need more requests to be as sure as those of M/M/1.
    """
    random = np.random.default_rng(4)
    count = 3 * COUNT
    load = workload(utilisation, random.exponential(TOKENS, count), np.ones(count), random)
    load = replace(load, qos_class=(random.random(count) < 0.5).astype(np.int16), classes=("free", "premium"))
    speed = make_speed(prefill=(0.0, 1 / TOKENS, 0.0), kv_capacity_tokens=10**9, max_batch=1, max_batched_tokens=10**9)
    result = simulate(load, make_cluster(speed), OnePriorityServer(pool="p", workers=1), slo=SLO)
    waits = (result.ttft_seconds - load.prompt_tokens / TOKENS)[count // 10 :]
    premium = load.qos_class[count // 10 :] == 1
    above = 1 - utilisation / 2
    assert waits[premium].mean() == pytest.approx(utilisation / above, rel=0.04)
    assert waits[~premium].mean() == pytest.approx(utilisation / (above * (1 - utilisation)), rel=0.04)


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/k."""
    below = sum(offered**n / math.factorial(n) for n in range(servers))
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return full / (below + full)
