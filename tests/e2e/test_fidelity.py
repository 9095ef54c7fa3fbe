"""Fidelity: a trace through real vLLM workers, and through the simulator, which knows no more than what they report.

The workers have measured themselves before they became ready: speed, room for KV, limits of a step (`/load`). What a
leg costs outside of the engines comes from single requests to the idle cluster. The trace itself is held out.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import pytest
from local_cluster import Cluster, wait_until

from fulcrum.api.worker import LoadReport
from fulcrum.balance.demand import Slo
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed, pool_speed
from fulcrum.replay import Client, Outcome, Record, discover, replay
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.traffic import Phase, Request, generate
from fulcrum.simulation.workload import Workload

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WORKERS = (2, 2)
"""Prefill and decode."""
UTILISATION = 0.55
"""Of the busier role: enough for queues, and not enough for one that only grows."""
SECONDS = 40.0
MIX = (200, 12)
"""Prompt and output tokens, log-normal."""
SPREAD = 0.5
SEED = 7
KV_BLOCK_TOKENS = 32
"""vLLM's on CPUs."""
TOLERANCE = 0.15
_PROBES = 6
_PROBE_TOKENS = 16
_PROBE_GAP_SECONDS = 1.0
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
    speed = reported_speed(auto)
    leg_seconds = measured_leg_seconds(auto, speed)
    trace = generate([phase_for(speed)], seed=SEED)

    records = run(auto, trace)
    auto.patch({"balance": {"mode": "Auto", "ratio": None}})
    assert all(record.outcome is Outcome.OK for record in records)
    real = Latencies.of([r.ttft_seconds or 0.0 for r in records], [t for r in records if (t := r.tpot_seconds)])
    simulated = simulate(
        Workload.of(trace),
        ClusterModel(
            pools=(PoolModel(name="cpu", speed=speed),), leg_seconds=leg_seconds, block_tokens=KV_BLOCK_TOKENS
        ),
        StaticSplit(pool="cpu", prefill=prefill, decode=decode),
        slo=SLO,
    )
    expected = Latencies.of(simulated.ttft_seconds.tolist(), simulated.tpot_seconds[~np.isnan(simulated.tpot_seconds)])
    print(f"\nspeed {speed.coefficients}, leg {leg_seconds * 1e3:.0f} ms, {len(trace)} requests")
    print(f"real       {real}\nsimulated  {expected}")
    assert expected.ttft == pytest.approx(real.ttft, rel=TOLERANCE)
    assert expected.tpot == pytest.approx(real.tpot, rel=TOLERANCE)


def has_roles(cluster: Cluster) -> bool:
    return cluster.roles() == {"prefill": WORKERS[0], "decode": WORKERS[1]}


def reported_speed(cluster: Cluster) -> WorkerSpeed:
    """Of the pool, from what each worker says of itself, as the gateway puts it together."""
    speeds = [measured_speed(load(worker.ip)) for worker in cluster.workers()]
    speed = pool_speed([each for each in speeds if each is not None])
    assert speed is not None
    return speed


def load(worker_ip: str) -> LoadReport:
    with urllib.request.urlopen(f"http://{worker_ip}:8001/load", timeout=10) as response:
        return msgspec.json.decode(response.read(), type=LoadReport)


def measured_leg_seconds(cluster: Cluster, speed: WorkerSpeed) -> float:
    """Half of what a single short request takes beyond its prefill and its first decode step."""
    requests = [
        Request(arrival_seconds=number * _PROBE_GAP_SECONDS, prompt_tokens=_PROBE_TOKENS, output_tokens=2)
        for number in range(_PROBES)
    ]
    ttft = float(np.median([record.ttft_seconds or 0.0 for record in run(cluster, requests)]))
    engines = speed.prefill_seconds(_PROBE_TOKENS, _PROBE_TOKENS**2) + speed.decode_step_seconds(1, _PROBE_TOKENS)
    return max(0.0, ttft - engines) / 2


def phase_for(speed: WorkerSpeed) -> Phase:
    """Traffic that keeps the busier role at `UTILISATION`."""
    prompt, output = MIX
    squares = prompt**2 * np.exp(SPREAD**2)
    batch = speed.max_batch
    prefills = WORKERS[0] / speed.prefill_seconds(prompt, float(squares))
    decodes = WORKERS[1] * batch / (output * speed.decode_step_seconds(batch, batch * prompt))
    return Phase(
        seconds=SECONDS,
        requests_per_second=UTILISATION * min(prefills, decodes),
        prompt_tokens_mean=prompt,
        output_tokens_mean=output,
        spread=SPREAD,
    )


def run(cluster: Cluster, requests: Sequence[Request]) -> list[Record]:
    async def go() -> list[Record]:
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            return await replay(client, await discover(client), requests, seed=len(requests))

    return asyncio.run(go())


def _p50_p90(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p90 = np.percentile(seconds, (50, 90))
    return float(p50), float(p90)
