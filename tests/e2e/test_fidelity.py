"""Fidelity: a trace through real vLLM workers, and through the simulator, which knows no more than what they report.

The workers say what they measured before they became ready, their room for KV, the limits of a step, and how long
their prompts and steps have taken so far (`/load`). A trace of its own calibrates the simulator by that
(`calibration`). Then another one, with other arrivals and lengths, runs through both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from calibration import Calibration, calibrated, measured_at_start, pace, reports, run
from local_cluster import Cluster, wait_until

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import Outcome
from fulcrum.simulation.traffic import Phase, generate

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PREFILL, DECODE = 2, 2
"""Workers of either role."""
UTILISATION = 0.5
"""Of the busier role: enough for queues, and not enough for one that only grows."""
CALIBRATION_SECONDS, SECONDS = 25.0, 40.0
CALIBRATION_SEED, SEED = 5, 7
MIX = (300, 24)
"""Prompt and output tokens, log-normal."""
SPREAD = 0.5
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """p50 and p90, in seconds."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]

    @classmethod
    def of(cls, ttft: Iterable[float | None], tpot: Iterable[float | None]) -> Latencies:
        return cls(ttft=_p50_p90(ttft), tpot=_p50_p90(tpot))

    def __str__(self) -> str:
        return "; ".join(
            f"{name} p50 {p50 * 1e3:6.1f} ms  p90 {p90 * 1e3:6.1f} ms"
            for name, (p50, p90) in (("TTFT", self.ttft), ("TPOT", self.tpot))
        )


def test_the_simulator_tells_what_real_workers_do(auto: Cluster) -> None:
    auto.patch({"balance": {"mode": "Manual", "ratio": {"prefill": PREFILL, "decode": DECODE}}})
    wait_until("2P:2D", partial(has_roles, auto), seconds=60)
    told = calibration(auto)
    trace = generate([phase(told.speed, SECONDS)], seed=SEED)
    records = run(auto, trace, seed=SEED)
    auto.patch({"balance": {"mode": "Auto", "ratio": None}})

    assert all(record.outcome is Outcome.OK for record in records)
    real = Latencies.of((r.ttft_seconds for r in records), (r.tpot_seconds for r in records))
    result, _ = told.simulate(trace, PREFILL, DECODE)
    simulated = Latencies.of(result.ttft_seconds.tolist(), result.tpot_seconds.tolist())
    print(f"{len(trace)} requests in {SECONDS:.0f} s\nreal       {real}\nsimulated  {simulated}")
    assert simulated.ttft == pytest.approx(real.ttft, rel=TOLERANCE)
    assert simulated.tpot == pytest.approx(real.tpot, rel=TOLERANCE)


def has_roles(cluster: Cluster) -> bool:
    return cluster.roles() == {"prefill": PREFILL, "decode": DECODE}


def calibration(cluster: Cluster) -> Calibration:
    before = reports(cluster)
    start = measured_at_start(before)
    trace = generate([phase(start.speed, CALIBRATION_SECONDS)], seed=CALIBRATION_SEED)
    records = run(cluster, trace, seed=CALIBRATION_SEED)
    found = calibrated(start, trace, records, pace(before, reports(cluster)), prefill=PREFILL, decode=DECODE)
    print(f"\nat start   {start.speed.coefficients}\ncalibrated {found.speed.coefficients}")
    print(f"{found.leg_seconds * 1e3:.0f} ms per leg outside of the engines")
    return found


def phase(speed: WorkerSpeed, seconds: float) -> Phase:
    """Traffic that keeps the busier role at `UTILISATION`."""
    prompt, output = MIX
    squares = prompt**2 * float(np.exp(SPREAD**2))
    batch = speed.max_batch
    prefills = PREFILL / speed.prefill_seconds(prompt, squares)
    decodes = DECODE * batch / (output * speed.decode_step_seconds(batch, batch * prompt))
    return Phase(
        seconds=seconds,
        requests_per_second=UTILISATION * min(prefills, decodes),
        prompt_tokens_mean=prompt,
        output_tokens_mean=output,
        spread=SPREAD,
    )


def _p50_p90(seconds: Iterable[float | None]) -> tuple[float, float]:
    known = [each for each in seconds if each is not None and not np.isnan(each)]
    p50, p90 = np.percentile(known, (50, 90))
    return float(p50), float(p90)
