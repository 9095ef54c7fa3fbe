"""Simulation: what host memory and a shared pool are worth on the Mooncake conversation trace.

    python benchmarks/kv_tiers.py [--trace ../shared/traces/mooncake_conversation.jsonl] [--limit N]

Eight mixed workers (Llama-3.3-70B in FP8 on 4 x H100 by the roofline, KV caches of 500,000 tokens, 160 KiB per token),
the production router and split. Hits are prompt tokens that were not computed. Links are those of each worker to the
pool, in GB/s; gateways share what they sent where, and what engines report.

The trace tells times to 3 s, so some ten requests come at one instant, and gateways that decide at one instant know
nothing of each other. The last lines spread the arrivals evenly over these 3 s.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import TransferCost, kv_bytes_per_token
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import worker_speed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.kv_tiers import KvTiers
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.traffic import load_trace
from fulcrum.simulation.workload import Workload

MODEL, GPUS, WORKERS = "meta-llama/Llama-3.3-70B-Instruct", 4, 8
CACHE_TOKENS, POOL_TOKENS = 500_000, 32_000_000
HOST_BYTES_PER_SECOND = 4 * 50e9
"""PCIe Gen5, one link for each GPU."""
TICK_SECONDS = 3.0
"""How exactly the trace tells times."""
SLO = LatencyTargets(ttft_seconds=10.0, tpot_seconds=0.1, attainment=0.95)
TRACE = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces" / "mooncake_conversation.jsonl"


def tiers(*, pool_gigabytes: float, front: bool, pool_tokens: int = POOL_TOKENS) -> KvTiers:
    """The pool over a link of this rate; what comes from it crosses the host's link, too."""
    size = kv_bytes_per_token(known_model(MODEL), Precision.FP8)
    return KvTiers(
        host_link=TransferCost(base_seconds=0.0, seconds_per_token=size / HOST_BYTES_PER_SECOND),
        pool_tokens=pool_tokens,
        pool_link=TransferCost(base_seconds=0.0, seconds_per_token=size / (pool_gigabytes * 1e9)),
        front=front,
    )


def spread(load: Workload, ticks_seconds: float) -> Workload:
    """Return the same requests, each up to `ticks_seconds` later."""
    later = load.arrival_seconds + np.random.default_rng(1).uniform(0, ticks_seconds, len(load))
    order = np.argsort(later, kind="stable")
    return dataclasses.replace(load.at(order), arrival_seconds=later[order])


def run(name: str, load: Workload, kv_tiers: KvTiers | None, *, gateways: int = 1, poll_seconds: float = 0.25) -> float:
    """Simulate and print a line; returns the mean TTFT."""
    speed = worker_speed(known_model(MODEL), accelerator("H100-SXM-80GB"), tensor=GPUS, kv=Precision.FP8)
    pool = PoolModel(name="p", speed=dataclasses.replace(speed, kv_capacity_tokens=CACHE_TOKENS), gpus_per_worker=GPUS)
    cluster = ClusterModel(pools=(pool,), kv_tiers=kv_tiers, gateways=gateways, poll_seconds=poll_seconds)
    result = simulate(load, cluster, Aggregated(pool="p", workers=WORKERS), slo=SLO)
    hits = 1 - result.computed_tokens.sum() / load.prompt_tokens.sum()
    mean = float(np.nanmean(result.ttft_seconds))
    p50, p90 = np.nanquantile(result.ttft_seconds, [0.5, 0.9])
    print(
        f"{name:44} hits {hits:.3f}, TTFT mean {mean:6.3f} s, p50 {p50:6.3f} s, p90 {p90:6.3f} s, "
        f"inside {result.summary(SLO).attainment:.1%}",
        flush=True,
    )
    return mean


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--speed", type=float, default=1.0, help="replay the trace this many times as fast")
    asked = parser.parse_args()
    load = Workload.of(load_trace(asked.trace)).scaled(asked.speed)
    if asked.limit is not None:
        load = load.at(np.arange(min(asked.limit, len(load))))
    print(f"{len(load):,} requests in {load.duration_seconds:,.0f} s, {WORKERS} workers")
    without = run("no tier", load, None)
    for gigabytes in (11.5, 2.9):
        for front in (False, True):
            policy = "partialRecompute" if front else "load"
            mean = run(f"pool, {gigabytes} GB/s, {policy}", load, tiers(pool_gigabytes=gigabytes, front=front))
            print(f"{'':44} mean TTFT {mean / without - 1:+.1%} of no tier", flush=True)
    for pooled in (False, True):
        name = "pool, 11.5 GB/s, partialRecompute" if pooled else "no tier"
        found = tiers(pool_gigabytes=11.5, front=True) if pooled else None
        run(f"{name}, 3 gateways", load, found, gateways=3)
    spaced = spread(load, TICK_SECONDS / asked.speed)
    run("no tier, spread", spaced, None)
    run("pool, 11.5 GB/s, partialRecompute, spread", spaced, tiers(pool_gigabytes=11.5, front=True))
    for seconds in (1.0, 0.25, 0.05):
        run(f"no tier, spread, 3 gateways, {seconds:g} s", spaced, None, gateways=3, poll_seconds=seconds)


if __name__ == "__main__":
    main()
