"""Where the model reduces to a queue of the textbooks, each request waits as long as there.

The queues themselves (`textbook_queues`) have the mean waiting times that the textbooks give.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.textbook_queues import Seconds, erlang_c, waits, waits_by_class
from tests.simulation.worlds import SLO, make_cluster, make_speed, qos_classes

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.result import Result
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

COUNT = 6_000
MEAN_COUNT = 120_000
"""Requests whose mean is within 4 % of the textbooks' formulas."""
TOKENS = 100_000
"""Prompt tokens of one second of service: enough for whole numbers to be as good as real ones."""
STEPS = 2000
"""Decode steps of one second of service."""
EXACT_SECONDS = 1e-9


class OneServer(Aggregated):
    """One worker, no gateway in front of it."""

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen:
        return Chosen(view.workers[0], view.workers[0])


class PriorityGateway(SimulatedGateway):
    """Sends everything to the one worker; only what it tells of classes counts."""

    def choose(self, request: SimulatedRequest, now: float) -> Chosen:
        ((worker,),) = self._ranks.values()
        return Chosen(worker, worker)

    def prefilled(self, request: SimulatedRequest, now: float) -> None:
        pass


class OnePriorityServer(Aggregated):
    """One worker, and classes in front of it."""

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        return PriorityGateway(slo=slo, speeds={}, classes=qos_classes(premium=2, free=1))


def workload(rate: float, prompts: np.ndarray, outputs: np.ndarray, random: np.random.Generator) -> Workload:
    count = len(prompts)
    return Workload(
        arrival_seconds=np.cumsum(random.exponential(1 / rate, count)),
        prompt_tokens=np.maximum(1, prompts).astype(np.int32),
        output_tokens=np.maximum(1, outputs).astype(np.int32),
        qos_class=np.zeros(count, dtype=np.int16),
    )


def served(load: Workload, policy: Aggregated, *, servers: int = 1, decode_a: float = 0.0) -> Result:
    """On one worker with a prefill of TOKENS per second, or with free prefills and steps of `decode_a` seconds."""
    speed = make_speed(
        prefill=(0.0, 0.0 if decode_a else 1 / TOKENS, 0.0),
        decode=(decode_a, 0.0, 0.0),
        kv_capacity_tokens=10**9,
        max_batch=servers,
        max_batched_tokens=10**9,
    )
    return simulate(load, make_cluster(speed), policy, slo=SLO)


def check_prefills(load: Workload) -> None:
    """One request at a time waits as in one queue before one server."""
    services = load.prompt_tokens / TOKENS
    found = served(load, OneServer(pool="p", workers=1)).end_seconds - load.arrival_seconds
    np.testing.assert_allclose(found - services, waits(load.arrival_seconds, services), atol=EXACT_SECONDS)


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_with_exponential_prompts_is_m_m_1(utilisation: float) -> None:
    random = np.random.default_rng(1)
    check_prefills(workload(utilisation, random.exponential(TOKENS, COUNT), np.ones(COUNT), random))


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_with_equal_prompts_is_m_d_1(utilisation: float) -> None:
    random = np.random.default_rng(2)
    check_prefills(workload(utilisation, np.full(COUNT, TOKENS), np.ones(COUNT), random))


@pytest.mark.parametrize(("servers", "utilisation"), [(2, 0.6), (8, 0.85)])
def test_a_batch_whose_steps_cost_the_same_is_m_m_k(servers: int, utilisation: float) -> None:
    random = np.random.default_rng(3)
    load = workload(servers * utilisation, np.ones(COUNT), random.geometric(1 / STEPS, COUNT), random)
    services = load.output_tokens / STEPS
    result = served(load, OneServer(pool="p", workers=1), servers=servers, decode_a=1 / STEPS)
    found = result.end_seconds - load.arrival_seconds - services
    # A request that comes during a step joins the next one, and so may one behind it.
    np.testing.assert_allclose(found, waits(load.arrival_seconds, services, servers), atol=2.01 / STEPS)


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_request_at_a_time_by_class_is_m_m_1_with_priorities_that_do_not_interrupt(utilisation: float) -> None:
    random = np.random.default_rng(4)
    load = workload(utilisation, random.exponential(TOKENS, COUNT), np.ones(COUNT), random)
    load = replace(load, qos_class=(random.random(COUNT) < 0.5).astype(np.int16), classes=("free", "premium"))
    services, premium = load.prompt_tokens / TOKENS, load.qos_class == 1
    found = served(load, OnePriorityServer(pool="p", workers=1)).ttft_seconds - services
    np.testing.assert_allclose(found, waits_by_class(load.arrival_seconds, services, premium), atol=EXACT_SECONDS)


def mean(waited: Seconds) -> float:
    """The first tenth, in which the queue fills, is left out."""
    return float(waited[len(waited) // 10 :].mean())


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_the_queues_have_the_means_of_the_textbooks(utilisation: float) -> None:
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(1 / utilisation, MEAN_COUNT))
    exponential = random.exponential(1.0, MEAN_COUNT)
    m_m_1, m_d_1 = waits(arrivals, exponential), waits(arrivals, np.ones(MEAN_COUNT))
    assert 1 + mean(m_m_1) == pytest.approx(1 / (1 - utilisation), rel=0.04)
    assert 1 + mean(m_d_1) == pytest.approx(1 + utilisation / (2 * (1 - utilisation)), rel=0.03)


@pytest.mark.parametrize(("servers", "utilisation"), [(2, 0.6), (8, 0.85)])
def test_the_queue_before_several_servers_has_the_mean_of_m_m_k(servers: int, utilisation: float) -> None:
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(1 / (servers * utilisation), MEAN_COUNT))
    waited = waits(arrivals, random.exponential(1.0, MEAN_COUNT), servers)
    expected = 1 + erlang_c(servers, servers * utilisation) / (servers * (1 - utilisation))
    assert 1 + mean(waited) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_the_queues_by_class_have_the_means_of_cobham(utilisation: float) -> None:
    """Waits of W0 / (1 - s1) and W0 / ((1 - s1)(1 - s1 - s2)), with W0 the work under way at an arrival.

    The wait of the lower class varies so much that 4 % need more requests to be as sure as those of M/M/1.
    """
    random, count = np.random.default_rng(4), 3 * MEAN_COUNT
    arrivals = np.cumsum(random.exponential(1 / utilisation, count))
    premium = random.random(count) < 0.5
    waited = waits_by_class(arrivals, random.exponential(1.0, count), premium)
    above = 1 - utilisation / 2
    late = np.arange(count) >= count // 10
    assert waited[late & premium].mean() == pytest.approx(utilisation / above, rel=0.04)
    assert waited[late & ~premium].mean() == pytest.approx(utilisation / (above * (1 - utilisation)), rel=0.04)
