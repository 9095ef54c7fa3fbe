"""What `benchmarks/calibration.py` finds out of a trace, where the truth is known: the workers are simulated ones."""

from __future__ import annotations

import pytest
from calibration import Calibration, Served, calibrated, crowding_of

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.simulation.traffic import Phase, generate

SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients.of(prefill=(0.03, 1.9e-3, 8e-7), decode=(0.05, 0.006, 0.0)),
    kv_capacity_tokens=23_296,
    max_batch=2,
    max_batched_tokens=2048,
)


def served(truth: Calibration, *, seed: int) -> Served:
    """Two prefill and two decode workers; those that prefill are half busy when all of them compute."""
    rate = 0.5 * 2 / (truth.speed.prefill_seconds(300, 300**2) * (1 + 3 * truth.crowding))
    phase = Phase(seconds=140.0, requests_per_second=rate, prompt_tokens_mean=300, output_tokens_mean=24, spread=0.5)
    trace = generate([phase], seed=seed)
    result, pace = truth.simulate(trace, 2, 2)
    return Served(
        trace=trace,
        ttft_seconds=result.ttft_seconds,
        tpot_seconds=result.tpot_seconds,
        pace=pace,
        prefill=2,
        decode=2,
    )


@pytest.mark.parametrize("crowding", [0.05, 0.3])
def test_a_machine_that_is_shared(crowding: float) -> None:
    truth = Calibration(speed=SPEED, leg_seconds=0.03, crowding=crowding)
    start = Calibration(speed=SPEED).scaled(0.8, 0.9)
    known = [served(truth, seed=1), served(truth, seed=2)]
    found = calibrated(start, known, crowding_of(start, known))
    assert found.crowding == pytest.approx(crowding, abs=0.05)
    assert found.off(served(truth, seed=3)) < 0.05


def test_a_trace_that_took_longer_than_it_was_told() -> None:
    slower = served(Calibration(speed=SPEED).scaled(1.2, 1.2), seed=1)
    assert Calibration(speed=SPEED).off(slower) > 0.1
    assert not Calibration(speed=SPEED).simulate(slower.trace, 2, 2)[1].within(0.05, slower.pace)
