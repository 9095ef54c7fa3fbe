"""How good the layout is that the performance model prefers: simulated, against the best of all static layouts.

For random scenarios with fixed workers (`robust.py`) the model is told the true load of each phase and names the layout
that serves most over all of them. Printed are what that layout and the best one serve inside the SLO, simulated with
production's routing and admission, and the same for all workers mixed. This is what the balance could reach at best
with one layout for all phases: what it loses beyond it, it loses by what it measures and when it flips.

    python benchmarks/layouts.py [--seed N] [--count N] [--most N] [--processes N]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from contests.scenarios import Scenario, draw, layouts

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import Demand, Load
from fulcrum.performance.layout import Layout
from fulcrum.performance.model import PerformanceModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies.fixed import Fixed, layout_name

LEAST_MEAN = 0.95
"""Of the best layout's attainment, over the scenarios."""
Places = list[tuple[str, Role]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Shares of requests inside the SLO of one scenario."""

    number: int
    best: str
    best_share: float
    preferred: str
    preferred_share: float
    preferred_estimate: float
    mixed_share: float
    mixed_estimate: float


def main() -> int:
    """Run the benchmark; 0 when the preferred layouts are good enough on average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="scenarios with fixed workers")
    parser.add_argument("--most", type=int, default=7, help="layouts that are simulated for each")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    scenarios: list[Scenario] = []
    number = 0
    while len(scenarios) < arguments.count:
        scenario = draw(arguments.seed, number)
        scenarios += [] if scenario.moving else [scenario]
        number += 1
    print(f"{'no.':>3} {'best':24} {'share':>6}  {'preferred':24} {'share':>6} {'est.':>6}  {'mixed':>6} {'est.':>6}")
    ratios = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for row in pool.map(partial(judged, most=arguments.most), scenarios):
            ratios.append(row.preferred_share / row.best_share if row.best_share else 1.0)
            print(
                f"{row.number:3} {row.best:24} {row.best_share:6.3f}  {row.preferred:24} {row.preferred_share:6.3f} "
                f"{row.preferred_estimate:6.3f}  {row.mixed_share:6.3f} {row.mixed_estimate:6.3f}",
                flush=True,
            )
    low, tenth = np.quantile(ratios, [0.0, 0.1])
    print(f"preferred / best: mean {np.mean(ratios):.3f}, lower tenth {tenth:.3f}, minimum {low:.3f}")
    return 0 if np.mean(ratios) >= LEAST_MEAN else 1


def judged(scenario: Scenario, *, most: int) -> Row:
    """Simulate some layouts, all mixed among them, and ask the model for each."""
    *splits, mixed = layouts(scenario)
    chosen = [*splits[:: max(1, -(-len(splits) // (most - 1)))], mixed]
    load, cluster, slo = scenario.workload(), scenario.cluster(), scenario.slo()
    classes = scenario.spec().admission.classes
    shares, estimates = {}, {}
    for places in chosen:
        policy = Fixed(places, admission=AdmissionPolicy.PREDICTIVE, classes=classes)
        shares[layout_name(places)] = simulate(load, cluster, policy, slo=slo).summary(slo).attainment
        estimates[layout_name(places)] = estimated(scenario, places)
    best, preferred = max(shares, key=shares.__getitem__), max(estimates, key=estimates.__getitem__)
    return Row(
        number=scenario.number,
        best=best,
        best_share=shares[best],
        preferred=preferred,
        preferred_share=shares[preferred],
        preferred_estimate=estimates[preferred],
        mixed_share=shares[layout_name(mixed)],
        mixed_estimate=estimates[layout_name(mixed)],
    )


def estimated(scenario: Scenario, places: Places) -> float:
    """Return the share of all requests that the model says a layout serves inside the SLO."""
    model, workload = PerformanceModel(scenario.speeds(), scenario.slo()), scenario.workload()
    counts = {role: Counter(pool for pool, its in places if its is role) for role in Role}
    layout = Layout.of(prefill=counts[Role.PREFILL], decode=counts[Role.DECODE], mixed=counts[Role.MIXED])
    begin_seconds = served = 0.0
    for phase in scenario.phases:
        at = workload.arrival_seconds
        inside = (at >= begin_seconds) & (at < begin_seconds + phase.seconds)
        begin_seconds += phase.seconds
        prompts, outputs = (each[inside].astype(float) for each in (workload.prompt_tokens, workload.output_tokens))
        if not len(prompts):
            continue
        demand = Demand(
            rate=len(prompts) / phase.seconds,
            isl_tokens=float(prompts.mean()),
            osl_tokens=float(outputs.mean()),
            isl_cv2=float(prompts.var() / prompts.mean() ** 2),
            osl_cv2=float(outputs.var() / outputs.mean() ** 2),
            prefix_hit=scenario.prefix_share if scenario.prefixes else 0.0,
            dispersion=max(1.0, scenario.cv**2),
        )
        served += model.goodput(layout, Load(rate=demand.rate, prefill=demand, decode=demand)) * phase.seconds
    return served / max(len(workload.arrival_seconds), 1)


if __name__ == "__main__":
    sys.exit(main())
