"""What each rule and tuning constant of the decision core buys, over the random scenarios of `robust.py`.

Each is switched off, or set to the value at which it does nothing, and ours is run again. Printed are points of
attainment that are lost without it (above 0: it pays): the mean over the scenarios, the mean of the tenth that loses
most and of the tenth that gains most, and in how many anything changes at all.

    python benchmarks/ablation.py [--seed N] [--count N] [--kind fixed|phases|moving|all] [--entry NAME,NAME]
                                  [--processes N]

Exits with 1 when an entry buys neither 0.5 points in the tenth that loses most nor 0.3 of the mean.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from contests.ablations import ABLATIONS, Ablation
from contests.judge import run_ours
from contests.scenarios import KINDS, Scenario, draw_kind

BUYS_MEAN, BUYS_TENTH = 0.3, 0.5
"""Points of attainment."""
UNCHANGED = 1e-9


def main() -> int:
    """Run the benchmark; 0 when every entry pays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="scenarios")
    parser.add_argument("--kind", choices=KINDS, default="all")
    parser.add_argument("--entry", help="entries by name, with commas; a room such as admission stands for all of its")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error("--count must be at least 1")
    entries = [one for one in ABLATIONS if arguments.entry is None or named(one, arguments.entry.split(","))]
    if not entries:
        parser.error(f"--entry: there is none of that name; there are {', '.join(one.name for one in ABLATIONS)}")
    scenarios = draw_kind(arguments.seed, arguments.count, arguments.kind)
    began = time.monotonic()
    paid = 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        whole = np.array(list(pool.map(attained, scenarios)))
        print(f"seed {arguments.seed}, {len(scenarios)} scenarios, mean attainment {whole.mean():.1%}")
        print(f"{'without':38} {'mean':>6} {'worst':>6} {'best':>6} {'differ':>6}", flush=True)
        for entry in entries:
            lost = 100 * (whole - np.array(list(pool.map(attained, scenarios, [entry] * len(scenarios)))))
            paid += printed(entry, lost)
    print(f"{paid} of {len(entries)} entries pay; {time.monotonic() - began:.0f} s, {arguments.processes} processes")
    return 0 if paid == len(entries) else 1


def named(entry: Ablation, wanted: list[str]) -> bool:
    """Report whether an entry is meant by one of these names."""
    return any(entry.name == name or entry.name.startswith(f"{name}.") for name in wanted)


def attained(scenario: Scenario, entry: Ablation | None = None) -> float:
    """Return ours' attainment, without the entry."""
    return run_ours(scenario, without=entry).summary.attainment


def printed(entry: Ablation, lost: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Print an entry's line, and return whether it pays."""
    tenth = max(1, len(lost) // 10)
    ordered = np.sort(lost)
    mean, worst, best = float(lost.mean()), float(ordered[-tenth:].mean()), float(ordered[:tenth].mean())
    differ = int((np.abs(lost) > UNCHANGED).sum())
    print(f"{entry.name:38} {mean:+6.2f} {worst:+6.2f} {best:+6.2f} {differ:6}  {entry.says}", flush=True)
    return mean >= BUYS_MEAN or worst >= BUYS_TENTH


if __name__ == "__main__":
    sys.exit(main())
