"""How still the number of workers is: Auto at a constant load for hours, and at one that rises and falls once an hour.

At some loads N workers are hardly too few and N + 1 hardly too many. What is measured over half a minute is never the
same twice, so a planner without room between `enough` and `too many` gives a worker back and asks for it again, and
each time a Pod has to load its model. Every constant load here is such an edge for somebody: 7 to 11 requests/s of chat
(log-normal lengths, 1,155 + 211 tokens on average) on three or four workers of Llama-3.1-70B, two H100 each. Loads of
which one worker carries nearly all are noisier: 0.5 to 1.5 requests/s are 15 to 45 in half a minute.

Printed per load: workers on average and at most, requests inside the SLO, and how many Pods were started and removed
after the first ten minutes. The exit code is 1 when a constant load starts more than two Pods an hour (three with few
requests), or one an hour on average, when one that rises and falls starts more than three, when a constant load
ever has more than twice its usual workers and one, or when fewer requests than promised are inside the SLO.

    python benchmarks/scaling.py [--hours H] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin

from policies import Case, inputs_of

from fulcrum.rollout import CreateWorker, DeleteWorker
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

CONSTANT = (7.0, 8.0, 9.0, 10.0, 11.0)
FEW = (0.5, 1.0, 1.5)
TIDES = (6.0, 10.0)
"""Means of the loads that rise and fall by `SWING` of them."""
SWING = 0.6
PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD = 1155, 211, 1.0
MOST_WORKERS = 16
START_SECONDS = 120.0
TURN_SECONDS = 5.0
SETTLED_SECONDS = 600.0
GPUS_PER_WORKER = 2
MOST_AN_HOUR, MOST_ON_AVERAGE, MOST_WITH_FEW, MOST_WITH_THE_TIDE = 2.0, 1.0, 3.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    workers: float
    """On average."""
    most: int
    inside: float
    promised: float
    started: float
    """Pods an hour."""
    removed: float


class Watched(Ours):
    """Our planner, when it started and removed Pods, and how many there were at most."""

    started: list[float]
    removed: list[float]
    most: int

    def on_tick(self, view: View) -> TickResult:
        turn = super().on_tick(view)
        self.most = max(self.most, len(view.pods))
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
    print(f"{'load':24} {'workers':>8} {'at most':>8} {'in SLO':>7}   Pods an hour: started  removed")
    few = [run(f"{rate:g}/s", [flat(rate, seconds)], arguments.seed) for rate in FEW]
    constant = [run(f"{rate:g}/s", [flat(rate, seconds)], arguments.seed) for rate in CONSTANT]
    tides = [run(f"{rate:g}/s +-{SWING:.0%} an hour", tide(rate, seconds), arguments.seed) for rate in TIDES]
    mean = sum(row.started for row in constant) / len(constant)
    checks = (
        (f"a constant load starts at most {MOST_AN_HOUR:g} Pods an hour", worst(constant) <= MOST_AN_HOUR),
        (f"one of few requests starts at most {MOST_WITH_FEW:g}", worst(few) <= MOST_WITH_FEW),
        (f"constant loads start at most {MOST_ON_AVERAGE:g} an hour on average: {mean:.2f}", mean <= MOST_ON_AVERAGE),
        (f"one that rises and falls starts at most {MOST_WITH_THE_TIDE:g}", worst(tides) <= MOST_WITH_THE_TIDE),
        (
            "a constant load never has more than twice its usual workers and one",
            all(row.most <= 2 * row.workers + 1 for row in (*few, *constant)),
        ),
        ("what is promised is kept", all(row.inside >= row.promised for row in (*few, *constant, *tides))),
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
    inputs = inputs_of(case, load, low=1, start_seconds=START_SECONDS)
    policy = Watched(inputs.spec, least_turn_seconds=TURN_SECONDS)
    policy.started, policy.removed, policy.most = [], [], 0
    result = simulate(load, inputs.cluster, policy, slo=inputs.slo)
    hours = (result.end_of_run_seconds - SETTLED_SECONDS) / 3600
    row = Row(
        name=name,
        workers=result.gpu_seconds / result.end_of_run_seconds / GPUS_PER_WORKER,
        most=policy.most,
        inside=result.summary(inputs.slo).attainment,
        promised=inputs.slo.attainment,
        started=len(policy.started) / hours,
        removed=len(policy.removed) / hours,
    )
    counts = f"{row.workers:8.2f} {row.most:8}"
    print(f"{row.name:24} {counts} {row.inside:7.1%} {row.started:23.1f} {row.removed:8.1f}", flush=True)
    return row


def worst(rows: Sequence[Row]) -> float:
    """Return the most Pods that any of them starts in an hour."""
    return max(row.started for row in rows)


if __name__ == "__main__":
    sys.exit(main())
