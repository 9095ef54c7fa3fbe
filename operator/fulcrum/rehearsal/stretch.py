"""Since when the load is of one kind."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen


def newest_stretch(seen: Seen, now: float, known_from: float = 0.0) -> float:
    """Return since when: as far back as what is older does not differ from what is newest, and is remembered.

    Nothing is known of the time before `known_from`.
    """
    arrivals, earliest = seen.arrival_seconds, max(known_from, now - TUNING.memory_seconds)
    begin = max(now - TUNING.stretch_seconds, earliest)
    while begin > earliest and int((arrivals >= begin).sum()) < TUNING.least_requests:
        begin -= TUNING.stretch_seconds / 2
    while begin > earliest:
        earlier = max(earliest, begin - max(TUNING.stretch_seconds / 2, (now - begin) / 3))
        newest, older = seen.since(begin), seen.at((arrivals >= earlier) & (arrivals < begin))
        if _differ(older, begin - earlier, newest, now - begin):
            return begin
        begin = earlier
    return earliest


def _differ(one: Seen, one_seconds: float, other: Seen, other_seconds: float) -> bool:
    """Report whether rate, prompts or answers differ."""
    rates = len(one) / one_seconds, len(other) / other_seconds
    # Arrivals come in bursts: their counts vary more than a Poisson variable's.
    error = sqrt(2 * (rates[0] / one_seconds + rates[1] / other_seconds))
    if abs(rates[0] - rates[1]) > TUNING.stretch_sigmas * error + TUNING.stretch_change * max(rates):
        return True
    prompts, answers = (
        [each.load.prompt_tokens for each in (one, other)],
        [each.made_tokens[each.ended] for each in (one, other)],
    )
    return _lengths_differ(*prompts) or _lengths_differ(*answers)


def _lengths_differ(one: NDArray[np.integer], other: NDArray[np.integer]) -> bool:
    if min(len(one), len(other)) < TUNING.least_requests / 5:
        return False
    logs = np.log1p(one), np.log1p(other)
    error = sqrt(sum(float(each.var()) / len(each) for each in logs))
    return abs(float(logs[0].mean() - logs[1].mean())) > TUNING.stretch_sigmas * error + TUNING.stretch_change
