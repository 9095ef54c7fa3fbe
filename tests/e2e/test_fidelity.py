"""Fidelity: a trace through real vLLM workers, and through the simulator, which knows no more than what they report.

The workers say what they measured before they became ready, their room for KV, the limits of a step, and what they have
done so far (`/load`). A trace of its own calibrates the simulator by that, with the code by which the controller learns
speeds; what first tokens took longer than that explains is what legs cost outside of the engines. Then another trace,
with other arrivals and lengths, runs through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from calibration import Reports, leg_seconds, run, speed_at_start, speed_under_traffic
from local_cluster import Cluster, wait_until

from fulcrum.balance.demand import Slo
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import Outcome
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.result import Result
from fulcrum.simulation.traffic import Phase, Request, generate
from fulcrum.simulation.workload import Workload

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WORKERS = (2, 2)
"""Prefill and decode."""
UTILISATION = 0.5
"""Of the busier role: enough for queues, and not enough for one that only grows."""
CALIBRATION_SECONDS, SECONDS = 25.0, 40.0
CALIBRATION_SEED, SEED = 5, 7
MIX = (300, 24)
"""Prompt and output tokens, log-normal."""
SPREAD = 0.5
KV_BLOCK_TOKENS = 32
"""vLLM's on CPUs."""
TOLERANCE = 0.15
SLO = Slo(ttft_seconds=3.0, tpot_seconds=0.3, attainment=0.95)
"""Nobody is turned away at this load; the router wants to know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """p50 and p90, in seconds."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]

    @classmethod
    def of(cls, ttft: Sequence[float], tpot: Sequence[float]) -> Latencies:
        return cls(ttft=_p50_p90(ttft), tpot=_p50_p90(tpot))

    def __str__(self) -> str:
        return "; ".join(
            f"{name} p50 {p50 * 1e3:6.1f} ms  p90 {p90 * 1e3:6.1f} ms"
            for name, (p50, p90) in (("TTFT", self.ttft), ("TPOT", self.tpot))
        )


def test_the_simulator_tells_what_real_workers_do(auto: Cluster) -> None:
    prefill, decode = WORKERS
    auto.patch({"balance": {"mode": "Manual", "ratio": {"prefill": prefill, "decode": decode}}})
    wait_until("2P:2D", partial(has_roles, auto), seconds=60)
    start = speed_at_start(auto)
    speed, leg = calibrated(auto, start)
    trace = generate([phase(speed, SECONDS)], seed=SEED)
    records = run(auto, trace, seed=SEED)
    auto.patch({"balance": {"mode": "Auto", "ratio": None}})

    assert all(record.outcome is Outcome.OK for record in records)
    real = Latencies.of([r.ttft_seconds or 0.0 for r in records], [t for r in records if (t := r.tpot_seconds)])
    result = simulated(trace, speed, leg)
    expected = Latencies.of(result.ttft_seconds.tolist(), result.tpot_seconds[~np.isnan(result.tpot_seconds)].tolist())
    print(f"\nat start {start.coefficients}\nunder traffic {speed.coefficients}, {leg * 1e3:.0f} ms per leg")
    print(f"{len(trace)} requests in {SECONDS:.0f} s\nreal       {real}\nsimulated  {expected}")
    assert expected.ttft == pytest.approx(real.ttft, rel=TOLERANCE)
    assert expected.tpot == pytest.approx(real.tpot, rel=TOLERANCE)


def has_roles(cluster: Cluster) -> bool:
    return cluster.roles() == {"prefill": WORKERS[0], "decode": WORKERS[1]}


def calibrated(cluster: Cluster, start: WorkerSpeed) -> tuple[WorkerSpeed, float]:
    """The workers' speed under traffic, and the seconds of a leg."""
    trace = generate([phase(start, CALIBRATION_SECONDS)], seed=CALIBRATION_SEED)
    with Reports(cluster) as reports:
        records = run(cluster, trace, seed=CALIBRATION_SEED)
    prompts = np.array([request.prompt_tokens for request in trace])
    speed = speed_under_traffic(start, reports, isl_cv2=float(prompts.var() / prompts.mean() ** 2))
    return speed, leg_seconds(records, simulated(trace, speed, 0.0).ttft_seconds.tolist())


def phase(speed: WorkerSpeed, seconds: float) -> Phase:
    """Traffic that keeps the busier role at `UTILISATION`."""
    prompt, output = MIX
    squares = prompt**2 * float(np.exp(SPREAD**2))
    batch = speed.max_batch
    prefills = WORKERS[0] / speed.prefill_seconds(prompt, squares)
    decodes = WORKERS[1] * batch / (output * speed.decode_step_seconds(batch, batch * prompt))
    return Phase(
        seconds=seconds,
        requests_per_second=UTILISATION * min(prefills, decodes),
        prompt_tokens_mean=prompt,
        output_tokens_mean=output,
        spread=SPREAD,
    )


def simulated(trace: Sequence[Request], speed: WorkerSpeed, leg: float) -> Result:
    pools = (PoolModel(name="cpu", speed=speed),)
    model = ClusterModel(pools=pools, leg_seconds=leg, block_tokens=KV_BLOCK_TOKENS)
    split = StaticSplit(pool="cpu", prefill=WORKERS[0], decode=WORKERS[1])
    return simulate(Workload.of(trace), model, split, slo=SLO)


def _p50_p90(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p90 = np.percentile(seconds, (50, 90))
    return float(p50), float(p90)
