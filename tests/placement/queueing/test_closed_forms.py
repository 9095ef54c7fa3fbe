"""The reference and the estimators against results that are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from tests.placement.queueing.reference_queue import Outcome, ReferenceQueue, Requests, draw_requests, settled

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing import decode_attainment, prefill_attainment
from fulcrum.placement.queueing.waiting import Service, Waiting, inverse_erlang_b, waiting


def worker(*, batch: int = 10**6, prefill: float = 1e-3, idle: float = 0.0, each: float = 0.0) -> WorkerSpeed:
    """Return a worker without a prefill constant: 1,000 tokens take a second."""
    return WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=0.0, prefill_b=prefill, prefill_c=0.0, decode_a=idle, decode_b=each, decode_c=0.0
        ),
        kv_capacity_tokens=10**9,
        max_batch=batch,
        max_batched_tokens=10**9,
    )


def prefilled(rate: float, lengths: str, speed: WorkerSpeed, *, count: int = 60_000) -> Outcome:
    rng = np.random.default_rng(7)
    drawn = rng.exponential(1000.0, count) if lengths == "exponential" else np.full(count, 1000.0)
    requests = Requests(
        arrivals=np.cumsum(rng.exponential(1 / rate, count)),
        prompts=np.maximum(np.rint(drawn), 1).astype(np.int64),
        outputs=np.ones(count, dtype=np.int64),
    )
    return ReferenceQueue(requests, [speed], role="prefill").run()


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(("lengths", "spread"), [("exponential", 1.0), ("alike", 0.5)])
def test_the_reference_is_a_single_queue(rho: float, lengths: str, spread: float) -> None:
    """Pollaczek and Khinchine: E[W] = rho / (1 - rho) * (1 + cv^2) / 2 services."""
    outcome = prefilled(rho, lengths, worker(batch=1))
    assert settled(outcome.waits).mean() == pytest.approx(rho / (1 - rho) * spread, rel=0.1)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(("lengths", "spread"), [("exponential", 1.0), ("alike", 0.5)])
def test_the_reference_serves_all_that_wait_at_once(rho: float, lengths: str, spread: float) -> None:
    """Gated batches: E[B^2]/E[B] = 2 * spread / (1 - rho^2); one waits its residual and for all that joined."""
    outcome = prefilled(rho, lengths, worker())
    behind = rho * 2 * spread / (1 - rho * rho) * (0.5 + rho)
    assert (settled(outcome.first).mean() - 1.0) == pytest.approx(behind, rel=0.1)


@pytest.mark.parametrize("cv2", [0.0, 2.0])
@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_the_reference_shares_the_processor(rho: float, cv2: float) -> None:
    """M/G/1-PS is insensitive: the mean time per token is 1 / (1 - rho) steps of one, whatever the lengths' spread."""
    step, osl = 1e-3, 100.0
    demand = Demand(rate=rho / (step * osl), isl_tokens=1.0, osl_tokens=osl, osl_cv2=cv2)
    speed = worker(each=step)
    requests = draw_requests(demand, count=40_000, seed=5)
    outcome = ReferenceQueue(requests, [speed], role="decode").run()
    generated = settled(outcome.between * (requests.outputs - 1))
    per_token = generated.sum() / settled(requests.outputs.astype(float)).sum()
    assert per_token == pytest.approx(step / (1 - rho), rel=0.1)


@pytest.mark.parametrize(("servers", "load", "blocking"), [(1, 1.0, 0.5), (2, 1.0, 0.2), (10, 5.0, 0.018385)])
def test_erlang_b_is_the_table(servers: int, load: float, blocking: float) -> None:
    assert 1 / inverse_erlang_b(servers, load) == pytest.approx(blocking, rel=1e-4)


@pytest.mark.parametrize("servers", [3, 64, 1000])
def test_erlang_b_is_its_recursion(servers: int) -> None:
    load, inverse = 0.9 * servers, 1.0
    for j in range(1, servers + 1):
        inverse = 1 + inverse * j / load
    assert inverse_erlang_b(servers, load) == pytest.approx(inverse, rel=1e-9)


def mean_wait(found: Waiting, service: Service) -> float:
    residual = found.residual * service.alone * (1 + service.cv2) / 2
    return found.chance * (residual + found.backlog_chance * found.backlog)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("cv2", "tolerance"), [(1.0, 0.03), (0.0, 0.3), (3.0, 0.25)])
def test_the_wait_is_pollaczek_khinchine_for_one_server(rho: float, cv2: float, tolerance: float) -> None:
    service = Service(constant=0.0, own=1.0, cv2=cv2, most_sharing=1.0, held_up=1.0)
    found = waiting(rho, 1, service)
    assert found.chance == pytest.approx(rho, rel=0.02)
    assert mean_wait(found, service) == pytest.approx(rho / (1 - rho) * (1 + cv2) / 2, rel=tolerance)


@pytest.mark.parametrize("servers", [2, 10, 100])
@pytest.mark.parametrize("rho", [0.5, 0.8, 0.95])
def test_the_chance_to_wait_lies_between_a_loss_system_and_one_common_queue(servers: int, rho: float) -> None:
    blocked = 1 / inverse_erlang_b(servers, rho * servers)
    common = blocked / (1 - rho * (1 - blocked))
    found = waiting(rho * servers, servers, Service(constant=0.0, own=1.0, cv2=1.0, most_sharing=1.0, held_up=1.0))
    assert blocked <= found.chance <= common * 1.001


def test_without_load_only_the_prompt_itself_counts() -> None:
    """Log-normal with cv2 = 1: ln L is normal with sigma^2 = ln 2, so that P(L <= mean) = Phi(sigma / 2)."""
    demand = Demand(rate=0.0, isl_tokens=1000.0, osl_tokens=1.0)
    assert prefill_attainment(demand, [(worker(), 1)], ttft_seconds=1.0) == pytest.approx(0.66138, abs=1e-3)
    assert prefill_attainment(demand, [(worker(), 1)], ttft_seconds=1.5, extra_seconds=0.5) == pytest.approx(
        0.66138, abs=1e-3
    )


def test_decode_without_growth_is_certain() -> None:
    demand = Demand(rate=5.0, isl_tokens=100.0, osl_tokens=100.0)
    assert decode_attainment(demand, [(worker(idle=0.02), 1)], tpot_seconds=0.021) == pytest.approx(1.0, abs=1e-3)
    assert decode_attainment(demand, [(worker(idle=0.02), 1)], tpot_seconds=0.019) == pytest.approx(0.0, abs=1e-3)
