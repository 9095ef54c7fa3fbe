"""How long one automatic plan takes, by the number of workers and by what it has to decide.

    python benchmarks/plan.py

Each case is planned several times from the same snapshot (a plan remembers nothing); the best and the median CPU time
are printed. Exits with 0 only when the median of every case with up to 1,000 workers is below 50 ms.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from time import process_time
from typing import Any

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.types import ForecastMethod, InferenceClusterSpec
from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide import GatewayState, ObservedWorker, Snapshot, WorkerPhase
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.peak import Busiest, Peak
from fulcrum.decide.target import ratio_text
from fulcrum.forecast.result import Forecast
from fulcrum.load.traffic import Traffic
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import as_seen, worker_revision
from fulcrum.rollout.actions import changes_cluster

SIZES = (10, 100, 1000, 5000)
LIMIT_WORKERS = 1000
LIMIT_MILLISECONDS = 50.0
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
H100 = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.010, prefill_b=25e-6, prefill_c=1e-10, decode_a=0.008, decode_b=60e-6, decode_c=50e-9
    ),
    kv_capacity_tokens=500_000,
)
"""Roughly an 8B model on one H100."""
L40S = msgspec.structs.replace(
    H100.coefficients, prefill_a=0.020, prefill_b=90e-6, decode_a=0.020, decode_b=90e-6, decode_c=160e-9
)
PER_WORKER_RATE = 5.5
"""Requests/s for each worker of 2,000 + 200 tokens: well within what they can do."""
MOST_WORKERS = 4096
"""Bound of one pool."""
PREFILL_SHARE = 0.47


def cluster(sizes: list[int]) -> InferenceClusterSpec:
    """Return a spec: one flippable pool, or that and one of slower decode workers."""
    names = ["h100", "l40s"]
    described: list[dict[str, Any]] = [
        {
            "name": name,
            "accelerator": "H100-SXM-80GB" if name == "h100" else "L40S-48GB",
            "workers": {"min": 1, "max": min(2 * size, MOST_WORKERS)},
            "roles": ["prefill", "decode"] if name == "h100" else ["decode"],
        }
        for name, size in zip(names, sizes, strict=False)
    ]
    document = {
        "model": {"name": "m"},
        "pools": described,
        "slo": {"ttft": "500ms", "tpot": "30ms", "attainment": 0.95},
        "balance": {"mode": "Auto"},
    }
    return msgspec.convert(document, InferenceClusterSpec)


def snapshot(spec: InferenceClusterSpec, sizes: list[int], *, measurements: Measurements) -> Snapshot:
    """Return a settled cluster with workers of `sizes` in its pools."""
    found: list[ObservedWorker] = []
    for pool, size in zip(spec.pools, sizes, strict=True):
        revision = worker_revision(cluster="c", spec=spec, pool=pool)
        for ordinal in range(size):
            role = Role.PREFILL if Role.PREFILL in pool.roles and ordinal < PREFILL_SHARE * sum(sizes) else Role.DECODE
            found.append(
                ObservedWorker(
                    name=f"c-{pool.name}-{ordinal}",
                    uid=f"u-{pool.name}-{ordinal}",
                    pool=pool.name,
                    ordinal=ordinal,
                    role=role,
                    role_epoch=0,
                    spec_hash=revision,
                    phase=WorkerPhase.RUNNING,
                    ready=True,
                    deleting=False,
                    pod_ip="10.0.0.1",
                    created=NOW - timedelta(hours=1),
                    ready_since=NOW - timedelta(minutes=50),
                    load=LoadReport(
                        role=role,
                        role_epoch=0,
                        ready=True,
                        draining=False,
                        running=9,
                        waiting=0,
                        queued_prompt_tokens=0,
                    ),
                    role_acknowledged=True,
                )
            )
    return Snapshot(
        name="c",
        generation=1,
        spec=spec,
        workers=tuple(found),
        gateway=GatewayState(desired=2, ready=2, cluster_ip="10.0.0.1"),
        measurements=measurements,
    )


def measurements(
    rate: float, *, isl: float = 2000.0, osl: float = 200.0, upper: float = 1.05, peak: float = 1.05
) -> Measurements:
    """Return a load of `rate` requests/s, with a forecast `upper` times and a past peak `peak` times as high."""
    return Measurements(
        traffic=Traffic(window_seconds=30.0, rate=rate, isl_tokens=isl, osl_tokens=osl, attainment=0.97),
        forecast=Forecast(
            method=ForecastMethod.ARIMA,
            interval_seconds=60.0,
            quantile=0.9,
            rate=(rate,) * 5,
            upper_rate=(rate * upper,) * 5,
            isl_tokens=(isl,) * 5,
            osl_tokens=(osl,) * 5,
        ),
        speeds={
            "h100": H100,
            "l40s": WorkerSpeed(coefficients=L40S, kv_capacity_tokens=200_000),
        },
        start_seconds=180.0,
        peak=Peak(
            rate=rate * peak,
            prompts=Busiest(rate=rate * peak, tokens=isl),
            outputs=Busiest(rate=rate * peak, tokens=osl),
        ),
    )


def cases(workers: int) -> dict[str, Measurements]:
    """Return what is to be decided, from nothing to everything at once."""
    usual = workers * PER_WORKER_RATE
    return {
        "steady": replace(measurements(usual), peak=None),
        "mix moves": measurements(usual / 2, isl=500.0, osl=900.0),
        "load doubles": measurements(usual, upper=1.9),
        "load halves": measurements(usual / 2),
        "overload": measurements(usual * 4),
    }


def measure(seen: Snapshot, *, runs: int) -> tuple[BalancePlan, float, float]:
    """Return the plan, and the best and the median milliseconds, with the look at each worker's revision before it."""
    times = []
    decided = plan(seen, NOW)
    gc.collect()
    for run in range(runs):
        moment = NOW + timedelta(seconds=run)
        began = process_time()
        workers = as_seen(seen.workers, cluster=seen.name, spec=seen.spec, now=moment)
        decided = plan(replace(seen, workers=workers), moment)
        times.append((process_time() - began) * 1000)
    return decided, min(times), median(times)


def main() -> int:
    """Print the table; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=7, help="plans per case (default: 7)")
    runs = arguments.parse_args().runs
    missed = 0
    print(f"{'workers':>7} {'pools':>5}  {'case':<13} {'best ms':>8} {'median ms':>9}  {'actions':>7}  target")
    for workers in SIZES:
        for pools in (1, 2) if workers <= MOST_WORKERS else (2,):
            sizes = [workers] if pools == 1 else [workers - workers // 4, workers // 4]
            spec = cluster(sizes)
            for name, seen in cases(workers).items():
                before = snapshot(spec, sizes, measurements=seen)
                settled = replace(before, status=plan(before, NOW).status) if name == "steady" else before
                decided, best, middle = measure(settled, runs=runs)
                late = workers <= LIMIT_WORKERS and middle >= LIMIT_MILLISECONDS
                missed += late
                changes = sum(1 for action in decided.actions if changes_cluster(action))
                print(
                    f"{workers:>7} {pools:>5}  {name:<13} {best:>8.1f} {middle:>9.1f}  {changes:>7}  "
                    f"{decided.status.ratio} -> {ratio_text(decided.target)}{'  TOO LONG' if late else ''}"
                )
    verdict = "all" if not missed else f"{missed} not"
    print(f"{verdict} below {LIMIT_MILLISECONDS:g} ms up to {LIMIT_WORKERS:,} workers")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
