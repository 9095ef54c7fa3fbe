"""The estimators against the simulated queue, where a sizing decides. `benchmarks/queueing.py` covers far more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.placement.queueing.reference_queue import ReferenceQueue, draw_requests, settled
from tests.placement.queueing.throughput import prefill_throughput

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.queueing import (
    decode_attainment,
    decode_step,
    mixed_attainment,
    prefill_attainment,
)

SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.018, prefill_b=1.02e-4, prefill_c=7e-9, decode_a=0.02, decode_b=4e-5, decode_c=6.3e-7
    ),
    kv_capacity_tokens=66_144,
)
CHAT = Demand(rate=0.0, isl_tokens=1000.0, osl_tokens=200.0)


@pytest.mark.parametrize(("workers", "rate"), [(1, 2.5), (4, 20.0), (4, 26.0), (16, 110.0)])
def test_prefill(workers: int, rate: float) -> None:
    demand = replace(CHAT, rate=rate)
    outcome = ReferenceQueue(draw_requests(demand, count=60_000, seed=2), [SPEED] * workers, role="prefill").run()
    simulated = float((settled(outcome.first) <= 1.0).mean())
    assert prefill_attainment(demand, [(SPEED, workers)], ttft_seconds=1.0) == pytest.approx(simulated, abs=0.04)


def test_short_prompts_share_steps() -> None:
    """A worker takes 45 requests/s one after the other; together it takes more, in time."""
    demand = Demand(rate=50.0, isl_tokens=40.0, osl_tokens=1.0)
    assert demand.rate * SPEED.prefill_seconds(40.0, 3200.0) > 1.0
    outcome = ReferenceQueue(draw_requests(demand, count=15_000, seed=2), [SPEED], role="prefill").run()
    simulated = float((settled(outcome.first) <= 0.2).mean())
    assert simulated > 0.9
    assert prefill_attainment(demand, [(SPEED, 1)], ttft_seconds=0.2) == pytest.approx(simulated, abs=0.06)


@pytest.mark.parametrize(("workers", "rate", "osl_cv2"), [(1, 3.0, 1.0), (4, 12.0, 0.0), (4, 13.5, 1.0)])
def test_decode(workers: int, rate: float, osl_cv2: float) -> None:
    demand = replace(CHAT, rate=rate, isl_tokens=500.0, osl_cv2=osl_cv2)
    outcome = ReferenceQueue(draw_requests(demand, count=8_000, seed=2), [SPEED] * workers, role="decode").run()
    simulated = float((settled(outcome.between, warm_up=0.3) <= 0.04).mean())
    assert decode_attainment(demand, [(SPEED, workers)], tpot_seconds=0.04) == pytest.approx(simulated, abs=0.06)


def test_memory_that_is_full_makes_decode_wait() -> None:
    tight = replace(SPEED, kv_capacity_tokens=15_000)
    demand = replace(CHAT, rate=2.0)
    assert decode_attainment(demand, [(SPEED, 1)], tpot_seconds=1.0) > 0.99
    assert decode_attainment(demand, [(tight, 1)], tpot_seconds=1.0) < 0.95
    assert decode_attainment(demand, [(tight, 1)], tpot_seconds=1.0, wait_seconds=1.0) > decode_attainment(
        demand, [(tight, 1)], tpot_seconds=1.0
    )


@pytest.mark.parametrize(("workers", "rate"), [(1, 2.0), (4, 12.0)])
def test_mixed(workers: int, rate: float) -> None:
    demand = replace(CHAT, rate=rate, isl_tokens=300.0)
    outcome = ReferenceQueue(draw_requests(demand, count=8_000, seed=2), [SPEED] * workers, role="mixed").run()
    first, between = settled(outcome.first, warm_up=0.3), settled(outcome.between, warm_up=0.3)
    found = mixed_attainment(demand, [(SPEED, workers)], ttft_seconds=0.3, tpot_seconds=0.06)
    assert found.ttft == pytest.approx(float((first <= 0.3).mean()), abs=0.04)
    assert found.tpot == pytest.approx(float((between <= 0.06).mean()), abs=0.06)


def test_both_legs_together() -> None:
    """Prefill and decode in a row: what leaves the one arrives at the other."""
    demand, slo = (
        replace(CHAT, rate=12.0, isl_tokens=500.0),
        LatencyTargets(ttft_seconds=0.6, tpot_seconds=0.045, attainment=0.9),
    )
    requests = draw_requests(demand, count=10_000, seed=3)
    first = ReferenceQueue(requests, [SPEED] * 2, role="prefill").run().first
    handed = requests.arrivals + first
    order = handed.argsort()
    then = replace(requests, arrivals=handed[order], prompts=requests.prompts[order], outputs=requests.outputs[order])
    decode = ReferenceQueue(then, [SPEED] * 4, role="decode").run()
    inside = (first[order] + decode.first <= slo.ttft_seconds) & (decode.between <= slo.tpot_seconds)
    found = prefill_attainment(
        demand, [(SPEED, 2)], ttft_seconds=slo.ttft_seconds, extra_seconds=decode_step(demand, [(SPEED, 4)])
    ) * decode_attainment(demand, [(SPEED, 4)], tpot_seconds=slo.tpot_seconds)
    assert found == pytest.approx(float(settled(inside.astype(float), warm_up=0.3).mean()), abs=0.05)


def test_prefix_hits_are_capacity() -> None:
    able = [prefill_throughput(replace(CHAT, prefix_hit=hit), [(SPEED, 4)]) for hit in (0.0, 0.5)]
    assert able[1] > 1.5 * able[0]
