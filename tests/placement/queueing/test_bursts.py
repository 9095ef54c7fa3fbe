"""Bursts: how they are measured, and what the estimates make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.queueing.test_properties import demands, speeds, targets, workers

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.bursts import dispersion
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing import decode_attainment, decode_step, prefill_attainment

EPSILON = 1e-3
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0079, prefill_b=7.15e-5, prefill_c=1.8e-9, decode_a=0.0157, decode_b=4.42e-5, decode_c=2.69e-8
    ),
    kv_capacity_tokens=456_400,
    max_batch=256,
    max_batched_tokens=8192,
    transfer_base_seconds=0.002,
    transfer_seconds_per_token=2.57e-6,
)
"""Llama-3.1-70B in FP8 on two H100, by the roofline."""


def test_nothing_is_said_of_few_or_empty_spans() -> None:
    assert dispersion([]) is None
    assert dispersion([5.0] * 9) is None
    assert dispersion([0.0] * 100) is None


@pytest.mark.parametrize("mean", [0.5, 20.0, 400.0])
def test_poisson_arrivals_are_no_bursts(mean: float) -> None:
    drawn = [dispersion(np.random.default_rng(seed).poisson(mean, 150).tolist()) for seed in range(200)]
    assert np.mean([index == 1.0 for index in drawn]) > 0.93
    assert max(index for index in drawn if index is not None) < 1.6


@pytest.mark.parametrize("batch", [2.0, 8.0])
def test_batches_are_told(batch: float) -> None:
    """Geometric batches of mean b have an index of 2 b - 1."""
    found = []
    for seed in range(50):
        random = np.random.default_rng(seed)
        counts = [random.geometric(1 / batch, random.poisson(40 / batch)).sum() for _ in range(150)]
        found.append(dispersion(counts) or 0.0)
    assert np.mean(found) == pytest.approx(2 * batch - 1, rel=0.1)


def test_neither_a_trend_nor_a_beat_is_a_burst() -> None:
    random = np.random.default_rng(1)
    assert dispersion(random.poisson(np.linspace(10, 100, 150)).tolist()) == 1.0
    beat = np.tile([10.0, 30.0], 75)
    assert dispersion(beat.tolist()) == pytest.approx(beat.var() / beat.mean())


@given(demands, speeds, workers, targets, st.floats(1.0, 30.0))
def test_more_bursts_never_help_prefill(
    demand: Demand, speed: WorkerSpeed, count: int, seconds: float, index: float
) -> None:
    even, uneven = (
        prefill_attainment(replace(demand, dispersion=each), [(speed, count)], ttft_seconds=seconds)
        for each in (1.0, index)
    )
    early = prefill_attainment(replace(demand, dispersion=index), [(speed, count)], ttft_seconds=seconds, early=True)
    assert 0.0 <= uneven <= even + EPSILON
    assert uneven - EPSILON <= early <= 1.0


SIMULATED = [
    # Gamma gaps with a cv of 2, 3, 4 and their measured index; rate; workers of each role; TTFT kept, TPOT kept
    (3.8, 12, 4, 4, 0.980, 1.0),
    (3.5, 18, 3, 5, 0.890, 1.0),
    (4.2, 24, 7, 1, 0.979, 0.978),
    (8.9, 18, 4, 4, 0.877, 1.0),
    (8.9, 18, 5, 3, 0.940, 1.0),
    (8.5, 24, 7, 1, 0.957, 0.927),
    (15.2, 18, 5, 3, 0.849, 1.0),
    (15.2, 18, 6, 2, 0.911, 1.0),
    (15.2, 18, 7, 1, 0.939, 0.998),
    (15.1, 24, 5, 3, 0.776, 0.999),
    (15.1, 24, 7, 1, 0.892, 0.815),
]
"""Of 900 s of bursts through the simulator, nobody turned away."""


@pytest.mark.parametrize("case", SIMULATED)
def test_estimates_are_near_simulated_bursts(case: tuple[float, int, int, int, float, float]) -> None:
    index, rate, prefill, decode, ttft, tpot = case
    demand = Demand(rate=rate, isl_tokens=1150, osl_tokens=210, isl_cv2=1.24, osl_cv2=0.9, dispersion=index)
    step = decode_step(demand, [(SPEED, decode)])
    estimated = prefill_attainment(demand, [(SPEED, prefill)], ttft_seconds=0.5, extra_seconds=step)
    assert estimated == pytest.approx(ttft, abs=0.06)
    kept = decode_attainment(demand, [(SPEED, decode)], tpot_seconds=0.03, wait_seconds=0.2)
    assert kept == pytest.approx(tpot, abs=0.04)


def test_a_smaller_part_of_bursts_is_calmer() -> None:
    """What the mixed estimate assumes: thinning by chance moves the index towards 1."""
    random = np.random.default_rng(3)
    counts = [int(random.geometric(1 / 8, random.poisson(5)).sum()) for _ in range(20_000)]
    part = [int(random.binomial(count, 0.25)) for count in counts]
    assert dispersion(counts) == pytest.approx(15.0, rel=0.1)
    assert dispersion(part) == pytest.approx(1 + 14 * 0.25, rel=0.1)
