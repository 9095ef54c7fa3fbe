"""Placements of random inventories in the simulator, run by the production balance, against one kind for the price.

Each inventory has three kinds of GPU (seeded). Three purchases for its price are placed and simulated: the inventory
as it is; what `fulcrum plan --budget` buys where every one of the three kinds can be had; and the best single kind, by
the estimates. Printed are predicted goodput, the simulated one, and both as multiples of the single kind's.

`bounds` is the budget's bound over that of the single kind: what a mixture gains at most if workers need not be whole.
`apart` is what the kinds of the inventory carry if each serves alone: what the placement adds to it is the mixture's.

A run begins empty: its first minute is not judged, since requests there meet decode batches that are not yet full. At
the predicted rate of a small plan that minute held 99 % of its promises, and the four minutes after it 90 %.

    python benchmarks/placement_simulated.py [--inventories 10] [--admission Off] [--processes N]
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log1p, sqrt
from statistics import median

import numpy as np

from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.known_models import known_model
from fulcrum.placement.deploy import inference_cluster
from fulcrum.placement.errors import PlacementError
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.plan import PlacementPlan
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import Ours
from placement import DEMAND, MODELS, PRICES, SLO, Entry, inventory, market, of_one_kind, planned

MODEL = MODELS[1]
WARM_SECONDS = 60.0
JUDGED_SECONDS = 120.0
JUDGED_REQUESTS = 5000
"""Slow plans run longer, until so many requests are judged: the share inside the promise then moves by a point or two
from seed to seed."""
LIKELY, HIGHEST = 0.9, 1.2
"""Parts of the predicted goodput: the first that is tried, and the most that is."""
TOLERANCE = 0.02
"""Of the predicted goodput: how closely the simulated one is found."""

Layout = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What one price buys, placed in three ways."""

    gpus: str
    given: PlacementPlan
    bought: PlacementPlan
    alone: PlacementPlan
    apart: float
    """Requests/s of the kinds of the inventory, each alone."""


def purchases(count: int, estimates: FluidEstimates) -> list[Purchase]:
    """Return the placements of random inventories."""
    random = np.random.default_rng(24)
    found = []
    for _ in range(count):
        kinds = [str(kind) for kind in random.choice(sorted(PRICES), 3, replace=False)]
        entries = [(kind, int(random.choice([4, 8])), int(random.integers(1, 3))) for kind in kinds]
        price = inventory(entries).price_per_hour
        alone = of_one_kind(price, MODEL, kinds, performance=estimates)
        found.append(
            Purchase(
                gpus=" + ".join(f"{gpus * nodes} {kind.split('-')[0]}" for kind, gpus, nodes in entries),
                given=planned(inventory(entries), MODEL, performance=estimates),
                bought=planned(market(price, kinds), MODEL, performance=estimates, most_price=price),
                alone=max(alone.values(), key=lambda plan: plan.goodput),
                apart=sum(carried_alone(entry, estimates) for entry in entries),
            )
        )
    return found


def carried_alone(entry: Entry, estimates: FluidEstimates) -> float:
    """Return predicted requests/s of the GPUs of one kind."""
    try:
        return planned(inventory([entry]), MODEL, performance=estimates).goodput
    except PlacementError:
        return 0.0


def layout(plan: PlacementPlan) -> Layout:
    """Return what the simulator sees of a plan."""
    return tuple((pool.name, pool.workers) for pool in plan.pools)


def carried(plan: PlacementPlan, admission: AdmissionPolicy) -> float:
    """Return the highest rate that a plan carries with the production balance and router."""
    document = inference_cluster(
        plan,
        name="planned",
        engine=Engine(model=known_model(MODEL)),
        ttft=f"{SLO.ttft_seconds:g}s",
        tpot=f"{SLO.tpot_seconds * 1e3:g}ms",
        attainment=SLO.attainment,
    )
    spec = load_inference_cluster(document).spec
    pools = [(pool.name.replace(f"-{pool.role.value}", "", 1), pool) for pool in plan.pools]
    speeds = {
        name: PoolModel(name=name, speed=p.option.speed, ranks=p.option.speed.ranks, gpus_per_worker=p.option.gpus)
        for name, p in pools
    }
    cluster = ClusterModel(pools=tuple(speeds.values()))
    initial = [(name, pool.role) for name, pool in pools for _ in range(pool.workers)]
    lengths = LogNormalLengths(
        prompt_mean=DEMAND.isl_tokens,
        output_mean=DEMAND.osl_tokens,
        prompt_spread=sqrt(log1p(DEMAND.isl_cv2)),
        output_spread=sqrt(log1p(DEMAND.osl_cv2)),
    )

    def met(rate: float) -> bool:
        seconds = WARM_SECONDS + max(JUDGED_SECONDS, JUDGED_REQUESTS / rate)
        load = stream(rate=constant(rate), lengths=lengths, seconds=seconds, seed=1)
        policy = Ours(spec, initial=initial, least_turn_seconds=5.0, admission=admission)
        inside = simulate(load, cluster, policy, slo=SLO).within(SLO)
        return float(inside[load.arrival_seconds >= WARM_SECONDS].mean()) >= SLO.attainment

    low, high = 0.0, HIGHEST * plan.goodput
    tried = LIKELY * plan.goodput
    while high - low > TOLERANCE * plan.goodput:
        low, high = (tried, high) if met(tried) else (low, tried)
        tried = (low + high) / 2
    return low


def main() -> int:
    """Print a line for each inventory, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventories", type=int, default=10)
    parser.add_argument("--admission", choices=[each.value for each in AdmissionPolicy], default="Predictive")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    admission = AdmissionPolicy(arguments.admission)
    all_of_them = purchases(
        arguments.inventories, FluidEstimates(DEMAND, SLO, turns_away=admission is not AdmissionPolicy.OFF)
    )
    plans = {layout(plan): plan for each in all_of_them for plan in (each.given, each.bought, each.alone)}
    print(
        "requests/s, predicted and simulated: given inventory, bought for its price, one kind | multiples of one kind"
    )
    heads = f"{'given':>13}  {'bought':>13}  {'one kind':>13} | {'given':>6} {'bought':>6} {'bounds':>6} {'apart':>6}"
    print(f"{'':26} {heads}")
    given, bought, errors = [], [], {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        simulated = {name: pool.submit(carried, plan, admission) for name, plan in plans.items()}
        for each in all_of_them:
            three = (each.given, each.bought, each.alone)
            rates = [simulated[layout(plan)].result() for plan in three]
            given.append(rates[0] / rates[2])
            bought.append(rates[1] / rates[2])
            errors |= {layout(plan): abs(plan.goodput / rate - 1) for plan, rate in zip(three, rates, strict=True)}
            figures = "  ".join(f"{plan.goodput:6.1f} {rate:6.1f}" for plan, rate in zip(three, rates, strict=True))
            print(
                f"{each.gpus:26} {figures} | {given[-1]:5.2f}x {bought[-1]:5.2f}x "
                f"{each.bought.bound / each.alone.bound:5.2f}x {each.given.goodput / each.apart:5.2f}x",
                flush=True,
            )
    print(f"given inventories against one kind: median {median(given):.2f}x, least {min(given):.2f}x")
    print(f"bought for their price: median {median(bought):.2f}x, least {min(bought):.2f}x")
    print(
        f"predicted against simulated, {len(plans)} plans: median {median(errors.values()):.0%}, "
        f"most {max(errors.values()):.0%} off"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
