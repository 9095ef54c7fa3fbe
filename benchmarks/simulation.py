"""Speed of the simulator: the Azure conversation hour on 16 workers, and a million requests on 64.

Prints requests and events per second of CPU time, and the peak memory; every run routes each request through the
production router. Fails when the hour takes 6 s or more, or the million 5 minutes or 2 GiB (with --full; otherwise the
first hundred thousand of it are run, and held to the same pace). Without the Azure trace a synthetic hour of the same
size and lengths is taken.

    python benchmarks/simulation.py [--full] [--trace azure_conv_2023.csv]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import Aggregated, StaticSplit
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.traffic import load_trace
from fulcrum.simulation.workload import Workload

HOUR_TARGET_SECONDS = 6.0
MILLION_TARGET_SECONDS = 300.0
MEMORY_TARGET_BYTES = 2 * 1024**3
QUICK_REQUESTS = 100_000
SHARED_TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "azure_conv_2023.csv"
LENGTHS = LogNormalLengths(prompt_mean=1155, output_mean=211, prompt_spread=0.9, output_spread=0.8)
SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.05, attainment=0.95)
# A 70B model in FP8 on two H100, roughly.
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.012, prefill_b=7e-5, prefill_c=1.5e-9, decode_a=0.012, decode_b=1e-4, decode_c=3e-8
    ),
    kv_capacity_tokens=400_000,
    transfer_base_seconds=0.002,
    transfer_seconds_per_token=3e-6,
)
CLUSTER = ClusterModel(pools=(PoolModel(name="h100", speed=SPEED, gpus_per_worker=2),))


def main() -> int:
    """Run the benchmark; 0 when both targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run the whole million")
    parser.add_argument("--trace", type=Path, default=SHARED_TRACE, help="an Azure LLM inference trace")
    arguments = parser.parse_args()

    if arguments.trace.exists():
        hour = Workload.of(load_trace(arguments.trace))
        print(f"hour: {arguments.trace.name}, {len(hour)} requests")
    else:
        hour = stream(rate=constant(19_366 / 3502), lengths=LENGTHS, seconds=3502, seed=1)
        print(f"hour: synthetic, {len(hour)} requests ({arguments.trace} is not there)")
    hour_seconds = max(
        run(hour, StaticSplit(pool="h100", prefill=5, decode=11)),
        run(hour, Aggregated(pool="h100", workers=16)),
    )
    met = verdict("hour on 16 workers", hour_seconds, HOUR_TARGET_SECONDS, "s")

    requests = 1_000_000 if arguments.full else QUICK_REQUESTS
    big = stream(rate=constant(190), lengths=LENGTHS, seconds=requests / 190, seed=2)
    print(f"million: {len(big)} requests at 190/s on 64 workers")
    seconds = run(big, StaticSplit(pool="h100", prefill=30, decode=34)) * (1_000_000 / len(big))
    met &= verdict(
        "million on 64 workers" + ("" if arguments.full else ", scaled"), seconds, MILLION_TARGET_SECONDS, "s"
    )
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    met &= verdict("peak memory", peak_bytes / 1024**2, MEMORY_TARGET_BYTES / 1024**2, "MiB")
    return 0 if met else 1


def run(workload: Workload, policy: Policy) -> float:
    """Simulate and print; returns CPU seconds."""
    started = time.process_time()
    result = simulate(workload, CLUSTER, policy, slo=SLO)
    seconds = time.process_time() - started
    summary = result.summary(SLO)
    print(
        f"  {policy.name:16} {seconds:7.2f} s  {len(workload) / seconds:9,.0f} requests/s  "
        f"{result.events / seconds:9,.0f} events/s  attainment {summary.attainment:.3f}  "
        f"TTFT p50 {summary.ttft_seconds.p50:.3f} s  TPOT p50 {summary.tpot_seconds.p50 * 1000:.1f} ms"
    )
    return seconds


def verdict(what: str, value: float, target: float, unit: str) -> bool:
    """Print whether a figure is below its target."""
    met = value < target
    print(f"{what}: {value:,.1f} {unit} (target below {target:,.0f} {unit}) {'ok' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    sys.exit(main())
