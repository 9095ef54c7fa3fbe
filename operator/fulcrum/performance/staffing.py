"""How many servers a stream of work needs so that few of its requests wait too long."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, log, pi, sqrt
from typing import Final

_HALVINGS: Final = 20
_MOST_SPREADS: Final = 8.0
"""Distance between servers and work, in square roots of the work, beyond which the chance to wait does not change."""
_AT_FULL_LOAD: Final = 1e-6
"""So near to a load of 1 the share that is turned away is taken at this distance from it: a limit of 0 / 0."""


def staffed(work: float, *, patience: float, misses: float, variability: float = 1.0) -> float:
    """Return how many servers `work` needs, which is the mean number that are busy.

    `patience` is in mean service times, `misses` the share of the requests that may wait longer (0 is taken for one in
    a million). `variability`: of arrivals and service against exponential ones (Allen and Cunneen), by which waits are
    longer.
    """
    if work <= 0:
        return 0.0
    low, high = 0.0, _MOST_SPREADS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        late = _log_waits(work, work + middle * sqrt(work)) - middle * sqrt(work) * patience / variability
        too_many = late > log(max(misses, 1e-6))
        low, high = (middle, high) if too_many else (low, middle)
    return work + high * sqrt(work)


def late_share(
    work: float, servers: float, *, patience: Sequence[float], variability: float = 1.0, turns_away: bool = False
) -> float:
    """Return the share of the requests that wait longer than their patience; 0 to 1.

    `patience` is in mean service times, each equally likely. `turns_away`: those that would be late are turned away
    when they arrive, so that they delay no others; then `work`, which is that of all who arrive, may exceed the
    servers. Exact for M/M/c with one patience, an approximation else (Boots and Tijms 1999).
    """
    load = work / servers
    if load <= 0.0:
        return 0.0
    if not turns_away and load >= 1.0:
        return 1.0
    if abs(1.0 - load) < _AT_FULL_LOAD:
        load = 1.0 - _AT_FULL_LOAD
    waits, spare = _log_waits(load * servers, servers), (1.0 - load) * servers / variability
    late = 0.0
    for each in patience:
        late += _turned_away(waits - spare * each, load) if turns_away else exp(waits - spare * each)
    return late / len(patience)


def _turned_away(log_late: float, load: float) -> float:
    """Return what remains of the share that would be late if those leave: with less load fewer are late."""
    small = exp(-abs(log_late))  # never too large for a number
    return (1.0 - load) * small / (1.0 - load * small) if log_late < 0.0 else (1.0 - load) / (small - load)


def _log_waits(work: float, servers: float) -> float:
    """Return the logarithm of the share that waits at all.

    Square-root staffing (Halfin and Whitt 1981): with `work + b * sqrt(work)` servers a request waits with probability
    1 / (1 + b * Phi(b) / phi(b)), and then longer than t service times with exp(-b * sqrt(work) * t): so many servers
    may be busier than few, and patient requests need fewer.
    """
    spreads = min(max((servers - work) / sqrt(work), -_MOST_SPREADS), _MOST_SPREADS)
    return -log(1 + spreads * erfc(-spreads / sqrt(2)) * sqrt(pi / 2) * exp(spreads**2 / 2))
