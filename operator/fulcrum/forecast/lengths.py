"""Prompt and output lengths: a mean over recent requests, or what this time of the season had, as has served best.

The tokens that a role works on are rate times length. The rate is forecast by models; a mean length has no trend worth
extrapolating, and much noise where few requests arrive, but some loads have an evening of long answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fulcrum.forecast.model import LEAST_INTERVALS, WINDOW_INTERVALS, Floats
from fulcrum.forecast.recurrence import EARLY_SHARE
from fulcrum.forecast.selection import gain_in_standard_errors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lengths:
    """Mean lengths per interval, and how many requests each is of."""

    values: Floats
    """0 where none was measured."""
    weight: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expectation:
    """What was expected of each interval `steps` intervals before, and what is expected of those to come."""

    said: Floats
    """Tokens per request, of the newest intervals up to the last measured one; NaN where nothing was expected."""
    ahead: Floats
    error: float
    """Summed over requests, in tokens."""

    def misjudged(self, tokens: Floats, ages: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        """Return the lengths of so many intervals ago as multiples of what was expected; 1 where one is unknown."""
        measured = int(np.flatnonzero(np.isfinite(tokens))[-1]) + 1
        place = len(self.said) - (measured - (len(tokens) - 1 - ages))
        known = (place >= 0) & (place < len(self.said))
        said = np.where(known, self.said[np.clip(place, 0, len(self.said) - 1)], np.nan)
        ratio: Floats = tokens[np.clip(len(tokens) - 1 - ages, 0, len(tokens) - 1)] / np.where(said > 0, said, np.nan)
        return np.where(np.isfinite(ratio), ratio, 1.0)


def expected_tokens(tokens: Floats, rate: Floats, *, steps: int, season_intervals: float) -> Expectation | None:
    """Expected tokens per request of the next `steps` intervals; None when none was ever measured.

    `tokens` is the mean of each interval, weighted by its `rate`. An exponentially weighted mean over requests, whose
    half-life is the one with the least weighted error `steps` intervals ahead on this very series; or such a mean of
    lengths against those of earlier seasons at the same time, where that was better by more than chance.
    """
    known = np.flatnonzero(np.isfinite(tokens))
    if not len(known):
        return None
    measured = int(known[-1]) + 1
    seen = _Lengths(values=np.nan_to_num(tokens[:measured]), weight=_weight(tokens[:measured], rate[:measured]))
    unknown = len(rate) - measured
    period = round(season_intervals)
    newest = slice(max(0, measured - max(WINDOW_INTERVALS, period)), measured)
    now = _Lengths(values=seen.values[newest], weight=seen.weight[newest])
    flat = _best(now, np.ones(len(now.values) + unknown + steps), steps)
    usual = _usual(seen, period, unknown + steps)
    if usual is None:
        return flat
    seasonal = _best(now, usual[newest.start :], steps)
    gain = now.weight * (np.abs(now.values - flat.said) - np.abs(now.values - seasonal.said))
    gain = gain[np.isfinite(gain) & (now.weight > 0)]
    # One standard error, as a method must beat the last value by.
    better = len(gain) >= LEAST_INTERVALS and gain_in_standard_errors(gain, steps - 1) > 1.0
    return seasonal if better and np.isfinite(seasonal.ahead).all() else flat


def _weight(tokens: Floats, rate: Floats) -> Floats:
    arrived = np.isfinite(rate) & (rate > 0)
    # Lengths may be of requests that ended, rates are of requests that arrived: a length without arrivals still counts.
    weight = np.where(arrived, rate, rate[arrived].mean() if arrived.any() else 1.0)
    weight[~np.isfinite(tokens)] = 0.0
    return weight


def _usual(seen: _Lengths, period: int, ahead: int) -> Floats | None:
    """Return the mean length of earlier seasons about the time of each interval, and of those to come.

    About is within `EARLY_SHARE` of a season. NaN where none is known; None where no season is.
    """
    count = len(seen.values)
    near = max(1, round(EARLY_SHARE * period))
    # What is expected `ahead` intervals before may rest on nothing later.
    if count <= period or near + ahead > period:
        return None
    tokens, requests = (np.concatenate([[0.0], np.cumsum(each)]) for each in (seen.weight * seen.values, seen.weight))
    tops, bottoms = np.zeros(count + ahead), np.zeros(count + ahead)
    for centre in range(-period, -count - ahead - near, -period):
        middle = np.arange(count + ahead) + centre
        begin, end = (np.clip(middle + off, 0, count) for off in (-near, near + 1))
        tops += tokens[end] - tokens[begin]
        bottoms += requests[end] - requests[begin]
    usual: Floats = np.where(bottoms > 0, tops, np.nan) / np.where(bottoms > 0, bottoms, 1.0)
    return usual


def _best(seen: _Lengths, usual: Floats, steps: int) -> Expectation:
    """Return what the half-life with the least error expects; lengths are taken against what is `usual`.

    `usual` reaches beyond `seen` to the last of the `steps` that are asked for.
    """
    count = len(seen.values)
    sure = np.isfinite(usual[:count])
    tops = np.where(sure, seen.weight * seen.values, 0.0)
    bottoms = np.where(sure, seen.weight * np.nan_to_num(usual[:count]), 0.0)
    found: list[Expectation] = []
    for half_life in (0.0, 1.0, 3.0, 10.0, 30.0):  # in intervals; 0 is the last interval alone
        level = _so_far(tops, bottoms, half_life)
        said = np.full(count, np.nan)
        said[steps:] = level[:-steps] * usual[steps:count]
        off = seen.weight * np.abs(seen.values - said)
        judged = np.isfinite(off)
        error = float(off[judged].sum()) if judged.any() else np.inf
        found.append(Expectation(said=said, ahead=level[-1] * usual[-steps:], error=error))
    return min(found, key=lambda each: each.error)


def _so_far(tops: Floats, bottoms: Floats, half_life: float) -> Floats:
    """The weighted mean as known after each interval; NaN before the first value."""
    # After ten half-lives a thousandth is left.
    kernel = 0.5 ** (np.arange(min(len(tops), int(10 * half_life) + 1)) / max(half_life, 1.0))
    top, bottom = (np.convolve(each, kernel)[: len(tops)] for each in (tops, bottoms))
    there = np.where(bottom > 0, np.arange(len(tops)), -1)
    latest = np.maximum.accumulate(there)  # a gap leaves the mean as it was
    means: Floats = top[latest] / np.where(bottom > 0, bottom, 1.0)[latest]
    means[latest < 0] = np.nan
    return means
