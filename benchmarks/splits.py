"""What fixed splits of prefill and decode keep inside the SLO under production's admission: simulated, and estimated.

    python benchmarks/splits.py [--seconds 400] [--seed 7]

Chat on eight workers of 70B (see policies.py), from a load that all splits nearly bear to one that none bears, and
prompts with short answers on four small workers that decode two requests at once; the estimate is what `placement`
ranks layouts by. Exits with 0 only when the split that is estimated best is simulated within 0.01 of the best.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from policies import SHARED_TRACES, cases, inputs_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.decide import small_workers

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.bursts import dispersion
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.load.tuning import TUNING
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import WORKLOADS, phased
from fulcrum.simulation.policies import Split, StaticSplit
from fulcrum.simulation.policy import known_speeds
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.workload import Workload

LOADS = (("stationary", 5.6), ("stationary", 4.4), ("stationary", 3.2), ("bursts", 1.5), ("bursts", 3.0))
"""Workload, and how much faster than it is."""
SPLITS = [Split(prefill, 8 - prefill) for prefill in range(3, 8)]
SMALL_RATES = (0.7, 1.2, 1.6, 2.0)
SMALL_SECONDS = 1500.0
SMALL_SPLITS = [Split(prefill, 4 - prefill) for prefill in range(1, 4)]
POOL = "gpus"
ATTAINMENT = 0.95
LARGEST_LOSS = 0.01


def demand_of(load: Workload) -> Demand:
    """What production would measure of a load."""
    prompts, outputs = (each.astype(float) for each in (load.prompt_tokens, load.output_tokens))
    seconds = float(load.arrival_seconds[-1])
    edges = np.arange(0.0, min(seconds, TUNING.memory_seconds), TUNING.span_seconds)
    return Demand(
        rate=len(load) / seconds,
        isl_tokens=float(prompts.mean()),
        osl_tokens=float(outputs.mean()),
        isl_cv2=float(prompts.var() / prompts.mean() ** 2),
        osl_cv2=float(outputs.var() / outputs.mean() ** 2),
        dispersion=dispersion(np.histogram(load.arrival_seconds, edges)[0].tolist()) or 1.0,
    )


def simulated(load: Workload, cluster: ClusterModel, slo: LatencyTargets, split: Split) -> float:
    """Share of the requests that are inside the SLO."""
    policy = StaticSplit(pool=POOL, prefill=split.prefill, decode=split.decode, admission=AdmissionPolicy.PREDICTIVE)
    return simulate(load, cluster, policy, slo=slo).summary(slo).attainment


def estimated(estimates: FluidEstimates, speed: WorkerSpeed, split: Split) -> float:
    """The same, by the estimates that placements are compared by."""
    return estimates.share(estimates.demand.rate, [(speed, split.prefill)], [(speed, split.decode)])


def compared(
    name: str, load: Workload, cluster: ClusterModel, slo: LatencyTargets, splits: Sequence[Split]
) -> list[str]:
    """Print a row; returns what is wrong with it."""
    demand, speed = demand_of(load), known_speeds(cluster)[POOL]
    estimates = FluidEstimates(demand, slo, turns_away=True)
    real = {split: simulated(load, cluster, slo, split) for split in splits}
    model = {split: estimated(estimates, speed, split) for split in splits}
    row = "  ".join(f"{real[split]:>5.3f} / {model[split]:.3f}" for split in splits)
    print(f"{demand.rate:>10.1f}  {demand.dispersion:>5.1f}  {row}", flush=True)
    loss = max(real.values()) - real[max(model, key=lambda split: model[split])]
    return [f"{name}: the choice loses {loss:.3f}"] if loss > LARGEST_LOSS else []


def print_head(splits: Sequence[Split]) -> None:
    """Name the columns."""
    names = (f"{split.prefill}P:{split.decode}D" for split in splits)
    print(f"{'requests/s':>10}  {'I':>5}  " + "  ".join(f"{name:>13}" for name in names))


def main() -> int:
    """Print the tables; 0 when the estimates are near enough to choose by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=400.0, help="of each load on the eight workers")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    problems = []
    print("inside the SLO, simulated / estimated; I: index of dispersion of arrivals")
    print_head(SPLITS)
    for name, speed in LOADS:
        load = WORKLOADS[name](options.seed).scaled(speed).between(0.0, options.seconds)
        inputs = inputs_of(next(case for case in cases(SHARED_TRACES) if case.name == name), load)
        slo = LatencyTargets(
            ttft_seconds=inputs.slo.ttft_seconds, tpot_seconds=inputs.slo.tpot_seconds, attainment=ATTAINMENT
        )
        problems += compared(f"{name} x{speed:g}", load, inputs.cluster, slo, SPLITS)
    print_head(SMALL_SPLITS)
    small = ClusterModel(pools=(PoolModel(name=POOL, speed=small_workers.SPEED),))
    for rate in SMALL_RATES:
        phase = Phase(
            seconds=SMALL_SECONDS, requests_per_second=rate, prompt_tokens_mean=195, output_tokens_mean=2.1, spread=0.3
        )
        load = phased([phase], seed=options.seed)
        problems += compared(f"{rate:g}/s on small workers", load, small, small_workers.SLO, SMALL_SPLITS)
    print("splits: " + ("; ".join(problems) if problems else "OK"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
