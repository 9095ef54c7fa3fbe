"""The best schedule of splits that is found with the whole workload known: what no planner can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contests.rivals.schedule import Schedule
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.comparison import OnProgress
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Split
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload

WINDOWS_SECONDS: Final = (30.0, 120.0, 300.0)
"""Lengths of time for which the search with foresight tries to keep a split."""
Step = tuple[float, Split]
"""A split, and the second from which on it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the searched runs have in common."""

    workload: Workload
    cluster: ClusterModel
    slo: LatencyTargets
    make: Callable[[Sequence[Step]], Schedule]
    """The policy that keeps these splits; with an admission, an overloaded minute does not spoil the next one."""


def run_splits(setting: Setting, splits: Sequence[Split], on_progress: OnProgress | None = None) -> dict[Split, Result]:
    """Return what comes of each split when it is kept."""
    return {split: _run(setting, [(0.0, split)], str(split), on_progress) for split in splits}


def with_foresight(
    setting: Setting, kept: Mapping[Split, Result], on_progress: OnProgress | None = None
) -> tuple[Result, Schedule]:
    """Return the best schedule that was found with the whole workload known, and flips that take no time.

    For each window the split that, kept all the time, brought most of that window's arrivals inside the SLO; played
    again as a schedule, for several lengths of windows, since the windows are not quite independent. The best of these
    and of the kept splits counts. So it is a plan that can be carried out, hence never above the true optimum;
    `bound.most_within` is never below it.
    """
    splits = sorted(kept)
    within = np.array([kept[split].within(setting.slo) for split in splits])
    free = replace(setting, cluster=replace(setting.cluster, flip_seconds=0.0))
    best = max(splits, key=lambda split: int(kept[split].within(setting.slo).sum()))
    winner, plan = kept[best], setting.make([(0.0, best)])
    for window_seconds in WINDOWS_SECONDS:
        steps = _per_window(within, splits, setting.workload.arrival_seconds, window_seconds)
        if len(steps) == 1:
            continue
        result = _run(free, steps, "optimum", on_progress)
        if result.within(setting.slo).sum() > winner.within(setting.slo).sum():
            winner, plan = result, setting.make(steps)
    return replace(winner, policy="optimum"), plan


def _per_window(
    within: NDArray[np.bool_], splits: Sequence[Split], arrival_seconds: NDArray[np.float64], window_seconds: float
) -> list[Step]:
    """Return the best split of each window, where it changes."""
    window = (arrival_seconds // window_seconds).astype(np.int64)
    good = np.array([np.bincount(window, weights=each, minlength=int(window[-1]) + 1) for each in within])
    steps: list[Step] = []
    present = int(np.argmax(good.sum(axis=1)))
    for number in range(good.shape[1]):
        best = int(np.argmax(good[:, number]))
        if good[best, number] > good[present, number] or not steps:
            present = best
            steps.append((number * window_seconds, splits[present]))
    return steps


def _run(setting: Setting, steps: Sequence[Step], name: str, report: OnProgress | None) -> Result:
    on_progress = None if report is None else lambda arrived: report(name, arrived)
    return simulate(setting.workload, setting.cluster, setting.make(steps), slo=setting.slo, on_progress=on_progress)
