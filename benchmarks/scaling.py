"""How still the number of workers is: Auto at a constant load for hours, and at one that rises and falls once an hour.

At some loads N workers are hardly too few and N + 1 hardly too many. What is measured over half a minute is never the
same twice, so a planner without room between `enough` and `too many` gives a worker back and asks for it again, and
each time a Pod has to load its model. Every constant load here is such an edge for somebody: 7 to 11 requests/s of chat
(log-normal lengths, 1,155 + 211 tokens on average) on three or four workers of Llama-3.1-70B, two H100 each.

Printed per load: GPUs on average, requests inside the SLO, and how many Pods were started and removed after the first
ten minutes. The exit code is 1 when a constant load starts more than two Pods an hour, or one an hour on average, when
one that rises and falls starts more than three, or when fewer requests than promised are inside the SLO.

    python benchmarks/scaling.py [--hours H] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin

from policies import Case, arena_of

from fulcrum.balance import CreateWorker, DeleteWorker
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import Turn
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

CONSTANT = (7.0, 8.0, 9.0, 10.0, 11.0)
TIDES = (6.0, 10.0)
"""Means of the loads that rise and fall by `SWING` of them."""
SWING = 0.6
PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD = 1155, 211, 1.0
MOST_WORKERS = 16
START_SECONDS = 120.0
TURN_SECONDS = 5.0
SETTLED_SECONDS = 600.0
MOST_AN_HOUR, MOST_ON_AVERAGE, MOST_WITH_THE_TIDE = 2.0, 1.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    gpus: float
    inside: float
    promised: float
    started: float
    """Pods an hour."""
    removed: float


class Watched(Ours):
    """Our planner, and when it started and removed Pods."""

    started: list[float]
    removed: list[float]

    def on_tick(self, view: View) -> Turn:
        turn = super().on_tick(view)
        for action in turn.actions:
            if view.now > SETTLED_SECONDS and isinstance(action, CreateWorker):
                self.started.append(view.now)
            elif view.now > SETTLED_SECONDS and isinstance(action, DeleteWorker):
                self.removed.append(view.now)
        return turn


def main() -> int:
    """Run the benchmark; 0 when workers are still enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0, help="simulated time of each load (default: 2)")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    seconds = arguments.hours * 3600
    print(f"{'load':28} {'GPUs':>6} {'in SLO':>7}   Pods an hour: started  removed")
    constant = [run(f"{rate:g}/s", [flat(rate, seconds)], arguments.seed) for rate in CONSTANT]
    tides = [run(f"{rate:g}/s +-{SWING:.0%} an hour", tide(rate, seconds), arguments.seed) for rate in TIDES]
    mean = sum(row.started for row in constant) / len(constant)
    checks = (
        (f"a constant load starts at most {MOST_AN_HOUR:g} Pods an hour", worst(constant) <= MOST_AN_HOUR),
        (f"constant loads start at most {MOST_ON_AVERAGE:g} an hour on average: {mean:.2f}", mean <= MOST_ON_AVERAGE),
        (f"one that rises and falls starts at most {MOST_WITH_THE_TIDE:g}", worst(tides) <= MOST_WITH_THE_TIDE),
        ("what is promised is kept", all(row.inside >= row.promised for row in (*constant, *tides))),
    )
    for name, met in checks:
        print(f"{name:72} {'ok' if met else 'MISSED'}")
    return 0 if all(met for _, met in checks) else 1


def flat(rate: float, seconds: float) -> Phase:
    return Phase(
        seconds=seconds,
        requests_per_second=rate,
        prompt_tokens_mean=PROMPT_TOKENS,
        output_tokens_mean=OUTPUT_TOKENS,
        spread=SPREAD,
    )


def tide(rate: float, seconds: float) -> list[Phase]:
    """Minutes of a load that rises and falls once an hour."""
    return [flat(rate * (1 + SWING * sin(2 * pi * minute / 60)), 60.0) for minute in range(int(seconds / 60))]


def run(name: str, phases: Sequence[Phase], seed: int) -> Row:
    """Simulate and print one load."""
    load: Workload = phased(phases, seed=seed)
    case = Case(name=name, load=lambda: load, workers=MOST_WORKERS)
    arena = arena_of(case, load, low=1, start_seconds=START_SECONDS)
    policy = Watched(arena.spec, least_turn_seconds=TURN_SECONDS)
    policy.started, policy.removed = [], []
    result = simulate(load, arena.cluster, policy, slo=arena.slo)
    hours = (result.end_of_run_seconds - SETTLED_SECONDS) / 3600
    row = Row(
        name=name,
        gpus=result.gpu_seconds / result.end_of_run_seconds,
        inside=result.summary(arena.slo).attainment,
        promised=arena.slo.attainment,
        started=len(policy.started) / hours,
        removed=len(policy.removed) / hours,
    )
    print(f"{row.name:28} {row.gpus:6.2f} {row.inside:7.1%} {row.started:23.1f} {row.removed:8.1f}", flush=True)
    return row


def worst(rows: Sequence[Row]) -> float:
    """Return the most Pods that any of them starts in an hour."""
    return max(row.started for row in rows)


if __name__ == "__main__":
    sys.exit(main())
