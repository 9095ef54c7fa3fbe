"""The best static split of a number of workers, found by trying them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.policies import Split
from fulcrum.simulation.result import Result

_COARSE_ABOVE: Final = 12
"""From so many workers on, only every second split and more are tried, so that at most so many are."""


def candidates(workers: int) -> list[Split]:
    """Return the splits to try: every P:D, or some of them, when there are many."""
    step = max(1, -(-workers // _COARSE_ABOVE))
    prefills = sorted({*range(1, workers, step), workers - 1} - {0})
    return [Split(prefill, workers - prefill) for prefill in prefills]


def best_of(results: Mapping[Split, Result], slo: LatencyTargets) -> Split:
    """Return the disaggregated split with most requests inside the SLO."""
    return max((split for split in results if split.prefill), key=lambda split: int(results[split].within(slo).sum()))
