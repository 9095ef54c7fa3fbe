"""The admission queue on against off: requests served inside the promise, on overloaded random scenarios.

    python benchmarks/waiting.py [--seed N] [--count N] [--planner]

Scenarios are those of `robust.py` whose load is above what the workers can do in a phase, with workers that stay. The
same workload goes through the same cluster twice. Workers keep the roles that a new cluster begins with, so that the
queue is all that differs; with `--planner` the production planner moves them in both runs, which takes ten times as
long. Exits with 0 where the queue serves at least 2 points more in ten scenarios of 40, and never 0.5 points less.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Final

import msgspec
from contests.scenarios import Scenario, draw

from fulcrum.api.serving_types import AdmissionQueue
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Fixed, Ours
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.result import Summary

QUEUE: Final = AdmissionQueue(max_wait="10m", max_requests=1000)
"""The promise ends a wait long before that."""
MORE_POINTS: Final = 2.0
MORE_SHARE: Final = 0.25
"""Share of the scenarios in which so many points more are asked for: ten of 40."""
LESS_POINTS: Final = 0.5
TURN_SECONDS: Final = 10.0
"""Shortest time between two turns of the planner."""


def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--planner", action="store_true", help="let the planner move the workers")
    arguments = parser.parse_args()
    began = time.monotonic()
    print(f"{'no.':>4} {'off':>6} {'on':>6} {'points':>6} {'served':>11}  scenario")
    points = []
    for scenario in islice(overloaded(arguments.seed), arguments.count):
        off, on = (run(scenario, queue, planner=arguments.planner) for queue in (None, QUEUE))
        points.append(100 * (on.attainment - off.attainment))
        print(
            f"{scenario.number:4} {off.attainment:6.1%} {on.attainment:6.1%} {points[-1]:+6.1f} "
            f"{off.served:5} {on.served:5}  {scenario.describe()}",
            flush=True,
        )
    more = sum(each >= MORE_POINTS for each in points)
    met = more >= MORE_SHARE * len(points) and min(points) >= -LESS_POINTS
    print(
        f"{len(points)} scenarios of seed {arguments.seed}: {more} with at least {MORE_POINTS:g} points more inside "
        f"the promise, {sum(each < -LESS_POINTS for each in points)} with more than {LESS_POINTS:g} less (minimum "
        f"{min(points):+.1f}), mean {sum(points) / len(points):+.1f}; targets {'met' if met else 'missed'}; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if met else 1


def overloaded(seed: int) -> Iterator[Scenario]:
    """Yield the overloaded scenarios of a seed whose workers stay."""
    for number in count():
        scenario = draw(seed, number)
        if not scenario.moving and "overload" in scenario.features():
            yield scenario


def run(scenario: Scenario, queue: AdmissionQueue | None, *, planner: bool) -> Summary:
    """Run a scenario with or without a queue."""
    spec, cluster, slo = scenario.spec(), scenario.cluster(), scenario.slo()
    admission = msgspec.structs.replace(spec.admission, queue=queue)
    spec = msgspec.structs.replace(spec, admission=admission)
    ours = Ours(spec, least_turn_seconds=TURN_SECONDS)
    policy: Policy = ours
    if not planner:
        policy = Fixed(ours.initial(cluster), admission=admission.policy, classes=admission.classes, queue=queue)
    return simulate(scenario.workload(), cluster, policy, slo=slo).summary(slo)


if __name__ == "__main__":
    sys.exit(main())
