"""Placement on unequal GPUs: against equal GPUs for the same money, the exact optimum and the clock.

1. HexGen-2's setting (ICLR 2025; prices of that time): inventories of unlike GPUs, OPT-30B and Llama-2-70B, against the
   best placement of one kind for the same money, and against H100 that prefill or decode, as DistServe places them, by
   the estimates. The search alone against the exact program. Beside it the plan where every kind can be bought for the
   price of the inventory.
2. Twenty small inventories against every placement there is.
3. Time on one core and the gap to the bound for 256 and 1,024 GPUs.
4. Splitwise's measured table: H100 prefill with A100 decode against either alone for the same money.

Exits with 1 when a search takes too long, alone is more than 5 % below the one with the exact program, or is more than
2 % below the best of every placement.

    python benchmarks/placement.py
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from tests.placement.brute_force import best_goodput, settings

from fulcrum.api.names import Role
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.errors import PlacementError
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import Inventory, inventory_from
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.performance import goodput
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import Request, search

PRICES = {"H100-SXM-80GB": 3.69, "A100-SXM-80GB": 1.75, "L40-48GB": 1.14, "A6000-48GB": 0.79}
"""USD per GPU and hour: an example of rental prices at the time of the paper."""
INVENTORIES = (
    (("H100-SXM-80GB", 2, 1), ("A100-SXM-80GB", 4, 1), ("L40-48GB", 2, 1)),
    (("H100-SXM-80GB", 4, 1), ("A100-SXM-80GB", 4, 2), ("L40-48GB", 4, 1), ("A6000-48GB", 8, 1)),
    (("H100-SXM-80GB", 8, 1), ("A100-SXM-80GB", 8, 1), ("L40-48GB", 8, 1), ("A6000-48GB", 8, 1)),
    (("H100-SXM-80GB", 2, 1), ("A100-SXM-80GB", 6, 1), ("L40-48GB", 4, 1), ("A6000-48GB", 8, 1)),
)
LIMITS_SECONDS = {256: 10.0, 1024: 60.0}
SLO = LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.1, attainment=0.9)
DEMAND = Demand(rate=0.0, isl_tokens=755.0, osl_tokens=200.0, isl_cv2=0.5, osl_cv2=0.8)
ESTIMATES = FluidEstimates(DEMAND, SLO)
MODELS = ("facebook/opt-30b", "meta-llama/Llama-2-70b-hf")
REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "splitwise_perf_model.csv"
SPLITWISE_PRICES = {"h100-80gb": 38.0, "a100-80gb": 17.6}
"""USD per machine of eight and hour, as Splitwise takes them."""
Entry = tuple[str, int, int]
"""Accelerator, GPUs per node, nodes."""


def inventory(entries: Sequence[Entry]) -> Inventory:
    """Return the nodes as an inventory with prices."""
    return inventory_from(
        {
            "nodes": [
                {"name": f"n{n}", "accelerator": kind, "gpus": gpus, "count": count, "pricePerHour": PRICES[kind]}
                for n, (kind, gpus, count) in enumerate(entries)
            ]
        }
    )


def planned(what: Inventory, model: str, **more: Any) -> PlacementPlan:
    """Return the plan with most goodput."""
    settings: dict[str, Any] = {"engine": Engine(model=known_model(model)), "performance": ESTIMATES, **more}
    return search(Request(inventory=what, prompt_tokens=DEMAND.isl_tokens, **settings))


def of_one_kind(price: float, model: str, kinds: Sequence[str], **more: Any) -> dict[str, PlacementPlan]:
    """Return the plan of each kind for the same money, in nodes of eight."""
    found = {}
    for kind in kinds:
        gpus = int(price / PRICES[kind] + 1e-9)
        nodes = [(kind, 8, gpus // 8), (kind, gpus % 8, 1)]
        try:
            found[kind] = planned(inventory([each for each in nodes if each[1] and each[2]]), model, **more)
        except PlacementError:
            continue
    return found


def market(price: float, kinds: Sequence[str]) -> Inventory:
    """Return as many nodes of eight of each kind as the price pays for."""
    return inventory([(kind, 8, ceil(price / PRICES[kind] / 8)) for kind in kinds])


def against_one_kind() -> bool:
    """Print the first table; returns whether the search alone is within 5 % of the exact optimum."""
    print(
        "GPUs  model           goodput/s  price/h | one kind, same money                       | alone/exact  gap | "
        "H100 as DistServe places them: given, per price paid, at most; bought, per price paid"
    )
    near, rows = True, []
    for entries in INVENTORIES:
        for model in MODELS:
            what = inventory(entries)
            price = what.price_per_hour
            plan, alone = planned(what, model), planned(what, model, exact_gpus=0)
            others = of_one_kind(price, model, sorted(PRICES))
            share = alone.goodput / plan.goodput
            near &= share >= 0.95
            bought = planned(market(price, sorted(PRICES)), model, most_price=price)
            equal = of_one_kind(price, model, ["H100-SXM-80GB"], roles=(Role.PREFILL, Role.DECODE))["H100-SXM-80GB"]
            given, free = (each.goodput / equal.goodput for each in (plan, bought))
            paid, free_paid = (equal.price_per_hour / each.price_per_hour for each in (plan, bought))
            rows.append((given, given * paid, plan.bound / equal.goodput, free, free * free_paid))
            row = " ".join(
                f"{kind.split('-')[0]} {plan.goodput / other.goodput:.2f}x" for kind, other in others.items()
            )
            print(
                f"{what.gpus:4}  {model[-14:]:14} {plan.goodput:10.2f} {price:8.2f} | {row:42} | "
                f"{share:10.1%} {plan.gap:5.1%} | " + "  ".join(f"{figure:.2f}x" for figure in rows[-1])
            )
    given, given_paid, most, free, free_paid = np.mean(rows, axis=0)
    print(
        f"against H100 as DistServe places them: mean {given:.2f}x, most {max(rows)[0]:.2f}x (published: 1.3x, 2.0x), "
        f"per price paid {given_paid:.2f}x; the bound, with parts of workers, is {most:.2f}x"
    )
    print(
        f"where every kind can be bought: mean {free:.2f}x, least {min(row[3] for row in rows):.2f}x, "
        f"per price paid {free_paid:.2f}x\n"
    )
    return near


def against_every_placement() -> bool:
    """Print goodput beside the best of every placement; returns whether all are within 2 %."""
    met = True
    print(f"{'of every placement':72} {'tried':>6} {'best':>7} {'found':>7} {'bound':>7}")
    for each in settings():
        best, tried = best_goodput(each.request)
        try:
            plan = search(each.request)
            found, bound = plan.goodput, plan.bound
        except PlacementError:
            found = bound = 0.0
        met &= found >= 0.98 * best
        share = f"{found / best:.1%}" if best else "none keeps the promise"
        print(f"{each.name:72} {tried:6} {best:7.2f} {found:7.2f} {bound:7.2f}  {share}")
    print()
    return met


def in_time() -> bool:
    """Print the time of large searches; returns whether all are within their limits."""
    met = True
    for gpus, limit in LIMITS_SECONDS.items():
        what = inventory([(kind, 8, gpus // 32) for kind in PRICES])
        for model in MODELS:
            began = time.process_time()
            plan = planned(what, model, exact_gpus=0)
            seconds = time.process_time() - began
            met &= seconds < limit
            print(f"{gpus:5} GPUs {model[-14:]:14} {seconds:5.1f} s of CPU (limit {limit:.0f}), gap {plan.gap:.2%}")
    print()
    return met


def splitwise() -> None:
    """Print goodput with measured speeds; each mix of whole machines for the price of twelve H100 machines."""
    if not REFERENCE.exists():
        print(f"skipped: {REFERENCE} is not there")
        return
    speeds = {kind: measured(kind) for kind in SPLITWISE_PRICES}
    budget = 12 * SPLITWISE_PRICES["h100-80gb"]
    best: dict[str, tuple[float, str]] = {}
    for prefill, decode in (("h100-80gb", "h100-80gb"), ("a100-80gb", "a100-80gb"), ("h100-80gb", "a100-80gb")):
        for prefills in range(1, int(budget / SPLITWISE_PRICES[prefill])):
            decodes = int((budget - prefills * SPLITWISE_PRICES[prefill]) / SPLITWISE_PRICES[decode])
            if decodes < 1:
                continue
            rate = goodput(
                ESTIMATES, prefill=[(speeds[prefill], prefills)], decode=[(speeds[decode], decodes)], mixed=[]
            )
            name = f"{prefill} prefill, {decode} decode"
            best[name] = max(best.get(name, (0.0, "")), (rate, f"{prefills}P:{decodes}D"))
    print(f"Splitwise's table, llama2-70b, TP 8, machines for {budget:.0f} USD/h:")
    for name, (rate, split) in best.items():
        print(f"  {name:38} {split:8} {rate:7.1f} requests/s")
    print()


def measured(kind: str) -> WorkerSpeed:
    """Return a machine of eight with llama2-70b, fitted to the table."""
    with REFERENCE.open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["model"], row["hardware"], row["tensor_parallel"]) == ("llama2-70b", kind, "8")
        ]
    sizes = [(float(row["prompt_size"]), float(row["batch_size"]), float(row["token_size"])) for row in rows]
    prefill = fit_relative(
        [(1.0, batch * prompt, batch * prompt**2) for prompt, batch, _ in sizes],
        [float(row["prompt_time"]) / 1e3 for row in rows],
    )
    decode = fit_relative(
        [(1.0, batch, batch * (prompt + tokens / 2)) for prompt, batch, tokens in sizes],
        [float(row["token_time"]) / 1e3 for row in rows],
    )
    kv_bytes = Engine(model=known_model("llama2-70b")).kv_bytes_per_token * 2
    return WorkerSpeed(
        coefficients=SpeedCoefficients.of(prefill=prefill, decode=decode),
        kv_capacity_tokens=int((8 * 80e9 * 0.9 - 140e9) / kv_bytes),
    )


def main() -> int:
    """Run all four; returns the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    near = against_one_kind()
    best = against_every_placement()
    met = in_time()
    splitwise()
    return 0 if near and best and met else 1


if __name__ == "__main__":
    sys.exit(main())
