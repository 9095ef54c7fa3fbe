"""What fixed splits of prefill and decode keep inside the SLO under production's admission: simulated, and estimated.

    python benchmarks/splits.py [--seconds 400] [--seed 7]

Chat on eight workers of 70B (see policies.py), from a load that all splits nearly bear to one that none bears; the
estimate is what `balance` chooses splits by. Exits with 0 only when no estimate is off by more than 0.09 and the split
that is estimated best is simulated within 0.01 of the best.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from policies import SHARED_TRACES, arena_of, cases

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.balance.bursts import MEMORY_SECONDS, SPAN_SECONDS, dispersion
from fulcrum.balance.demand import Demand, Slo
from fulcrum.balance.layout import Layout
from fulcrum.balance.load import Load
from fulcrum.balance.service import Service
from fulcrum.simulation.contest import Arena
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import WORKLOADS
from fulcrum.simulation.policies.schedule import Schedule, Split
from fulcrum.simulation.policy import known_speeds
from fulcrum.simulation.workload import Workload

LOADS = (("stationary", 5.6), ("stationary", 4.4), ("stationary", 3.2), ("bursts", 1.5), ("bursts", 3.0))
"""Workload, and how much faster than it is."""
WORKERS = 8
PREFILLS = range(3, WORKERS)
ATTAINMENT = 0.95
LARGEST_ERROR = 0.09
LARGEST_LOSS = 0.01


def demand_of(load: Workload) -> Demand:
    """What production would measure of a load."""
    prompts, outputs = (each.astype(float) for each in (load.prompt_tokens, load.output_tokens))
    seconds = float(load.arrival_seconds[-1])
    edges = np.arange(0.0, min(seconds, MEMORY_SECONDS), SPAN_SECONDS)
    return Demand(
        rate=len(load) / seconds,
        isl_tokens=float(prompts.mean()),
        osl_tokens=float(outputs.mean()),
        isl_cv2=float(prompts.var() / prompts.mean() ** 2),
        osl_cv2=float(outputs.var() / outputs.mean() ** 2),
        dispersion=dispersion(np.histogram(load.arrival_seconds, edges)[0].tolist()) or 1.0,
    )


def simulated(load: Workload, arena: Arena, prefill: int) -> float:
    """Share of the requests that are inside the SLO."""
    split = Schedule(
        pool="gpus", splits=[(0.0, Split(prefill, WORKERS - prefill))], admission=AdmissionPolicy.PREDICTIVE
    )
    return simulate(load, arena.cluster, split, slo=arena.slo).summary(arena.slo).attainment


def estimated(demand: Demand, service: Service, prefill: int) -> float:
    """The same, by the model that chooses splits."""
    layout = Layout.of(prefill={"gpus": prefill}, decode={"gpus": WORKERS - prefill})
    return service.goodput(layout, Load(rate=demand.rate, prefill=demand, decode=demand)) / demand.rate


def main() -> int:
    """Print the table; 0 when the estimates are near enough to choose by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=400.0, help="of each load")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print("inside the SLO, simulated / estimated; I: index of dispersion of arrivals")
    print(f"{'requests/s':>10}  {'I':>5}  " + "  ".join(f"{f'{p}P:{WORKERS - p}D':>13}" for p in PREFILLS))
    problems = []
    for name, speed in LOADS:
        load = WORKLOADS[name](options.seed).scaled(speed).between(0.0, options.seconds)
        arena = arena_of(next(case for case in cases(SHARED_TRACES) if case.name == name), load)
        slo = Slo(ttft_seconds=arena.slo.ttft_seconds, tpot_seconds=arena.slo.tpot_seconds, attainment=ATTAINMENT)
        demand, service = demand_of(load), Service(known_speeds(arena.cluster), slo)
        real = {prefill: simulated(load, arena, prefill) for prefill in PREFILLS}
        model = {prefill: estimated(demand, service, prefill) for prefill in PREFILLS}
        row = "  ".join(f"{real[p]:>5.3f} / {model[p]:.3f}" for p in PREFILLS)
        print(f"{demand.rate:>10.1f}  {demand.dispersion:>5.1f}  {row}", flush=True)
        error = max(abs(real[p] - model[p]) for p in PREFILLS)
        loss = max(real.values()) - real[max(model, key=lambda p: model[p])]
        if error > LARGEST_ERROR:
            problems.append(f"{name} x{speed:g}: an estimate is off by {error:.3f}")
        if loss > LARGEST_LOSS:
            problems.append(f"{name} x{speed:g}: the choice loses {loss:.3f}")
    print("splits: " + ("; ".join(problems) if problems else "OK"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
