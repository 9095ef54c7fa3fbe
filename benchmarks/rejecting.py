"""Early rejection over many seeds: ours against Mooncake's predictive rule, on the made-up loads that make it reject.

`policies.py` judges one seed. There a rule turns away some hundreds of twenty thousand requests and is late for a
hundred: with another seed both are others by a tenth. Here each load is run with many seeds, both rules on the same
requests with the same hardware; ours begins as a new cluster does, Mooncake's rule with the best split in hindsight.

Per load it prints the means over the seeds, by how much ours is below with the standard error of that difference, and
on how many seeds it is. The exit code is 1 when ours turns away more on average, or wastes more prefill.

    python benchmarks/rejecting.py [--seeds N,N,...] [--only NAME,NAME]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from contests.contestants import CONTESTANTS
from policies import LEAST_REJECTED, SHARED_TRACES, cases, inputs_of

from fulcrum.simulation.comparison import Comparison
from fulcrum.simulation.result import Summary

SEEDS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
"""Nothing was tuned on them."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both rules on the same requests."""

    ours: Summary
    rule: Summary


def main() -> int:
    """Run the benchmark; 0 when ours is below on average everywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="with commas")
    parser.add_argument("--only", help="loads, with commas")
    arguments = parser.parse_args()
    seeds = [int(each) for each in arguments.seeds.split(",")]
    only = arguments.only.split(",") if arguments.only else None
    names = [each.name for each in cases(SHARED_TRACES) if each.file is None and (only is None or each.name in only)]
    began = time.monotonic()
    print(
        f"seeds {arguments.seeds}; means, how much less ours is (and its standard error), on how many seeds it is less"
    )
    print(
        f"{'load':11} {'rejected':>8} {'rule':>7} {'less':>7} {'':7} {'seeds':>5}   "
        f"{'wasted':>6} {'rule':>6} {'less':>6} {'':7} {'seeds':>5}   {'in SLO':>6} {'rule':>6}"
    )
    met = True
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = {name: [pool.submit(compared, name, seed) for seed in seeds] for name in names}
        for name, running in jobs.items():
            met &= printed(name, [each.result() for each in running])
    print(f"{time.monotonic() - began:.0f} s; {'ours is below on average everywhere' if met else 'MISSED'}")
    return 0 if met else 1


def compared(name: str, seed: int) -> Pair:
    """Run one load with one seed."""
    case = next(each for each in cases(SHARED_TRACES, seed) if each.name == name)
    inputs = inputs_of(case, case.load())
    comparison = Comparison(inputs=inputs, table=CONTESTANTS)
    ours, rule = (comparison.run(policy).result.summary(inputs.slo) for policy in ("ours", "mooncake-predictive"))
    return Pair(ours=ours, rule=rule)


def printed(name: str, pairs: Sequence[Pair]) -> bool:
    """Print one load, and return whether ours is below."""
    mean = statistics.fmean(pair.rule.rejected / pair.rule.requests for pair in pairs)
    if mean < LEAST_REJECTED:
        print(f"{name:11} the rule turns away {mean:.2%}", flush=True)
        return True
    rejected, rejected_met = columns(pairs, lambda one: float(one.rejected), widths=(8, 7, 7), form=",.0f")
    wasted, wasted_met = columns(pairs, lambda one: one.wasted_prefill, widths=(6, 6, 6), form=".2%")
    inside = [statistics.fmean(one.attainment for one in each) for each in both(pairs)]
    print(f"{name:11} {rejected}   {wasted}   {inside[0]:6.1%} {inside[1]:6.1%}", flush=True)
    return rejected_met and wasted_met


def both(pairs: Sequence[Pair]) -> tuple[list[Summary], list[Summary]]:
    """Return the runs of ours, and those of the rule."""
    return [pair.ours for pair in pairs], [pair.rule for pair in pairs]


def columns(
    pairs: Sequence[Pair], figure: Callable[[Summary], float], *, widths: tuple[int, int, int], form: str
) -> tuple[str, bool]:
    """Return what is printed of one figure, and whether ours is below on average."""
    ours, rule = ([figure(one) for one in each] for each in both(pairs))
    less = [theirs - own for own, theirs in zip(ours, rule, strict=True)]
    error = statistics.stdev(less) / len(less) ** 0.5 if len(less) > 1 else 0.0
    mean = statistics.fmean(less)
    figures = (statistics.fmean(ours), statistics.fmean(rule), mean)
    text = " ".join(f"{value:{width}{form}}" for value, width in zip(figures, widths, strict=True))
    return f"{text} {f'± {error:{form}}':7} {sum(each > 0 for each in less):2}/{len(less):<2}", mean > 0


if __name__ == "__main__":
    sys.exit(main())
