"""Whether plays can be trusted: what they foretold beside what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fulcrum.decide.rehearsed import Checked
from fulcrum.load.demand import LatencyTargets
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.difference import share_error
from fulcrum.rehearsal.foretold import Foretold
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a rehearsal said of the requests to come, until it is held against them."""

    foretold: Foretold
    layout: Layout
    """Under which they come."""
    asked_at: float
    until: float
    """How far was played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How the last forecasts of one cluster came out, and whether plays are acted on."""

    forecast: Forecast | None = None
    """The oldest one that was not held against what came."""
    right: int = 0
    """Forecasts, one after the other and up to the last one, that were right but for chance."""
    wrong: int = 0
    """The same of those that were not."""
    lost: bool = False
    """So many were wrong that nothing is done by plays, until enough are right."""
    last: Checked | None = None
    """The last one,"""
    checked_at: float = 0.0
    """and when that was."""

    def known(self, now: float) -> Trust:
        """Return what is remembered: checks are forgotten with the requests of then, however often was asked since."""
        return self if now - self.checked_at < TUNING.memory_seconds else Trust(forecast=self.forecast)

    def after(self, seen: Seen, now: float, since: float, standing: Layout, slo: LatencyTargets) -> Trust:
        """Return the trust after a look at what was foretold; `since`: the load is of one kind."""
        told = self.forecast
        if told is None:
            return self
        if told.layout != standing or since > told.asked_at:
            return replace(self, forecast=None)  # what came is not what it was about
        until = min(told.until, now - _request_seconds(seen, slo))
        enough_seconds = min(TUNING.shortest_seconds, told.until - told.asked_at)
        came = (seen.arrival_seconds >= told.asked_at) & (seen.arrival_seconds < until)
        if until - told.asked_at < enough_seconds or came.sum() < TUNING.least_requests:
            return self
        inside = (~(seen.missed | _behind(seen, now, slo))[came]).astype(np.float64)
        found = Checked(told.foretold.inside(until - told.asked_at), float(inside.mean()))
        # So few may all be inside, or all late: what was foretold tells as well by how much so many vary.
        vary = told.foretold.error * sqrt(told.foretold.requests / len(inside))
        chance = sqrt(max(share_error(inside, seen.arrival_seconds[came]), vary) ** 2 + told.foretold.error**2)
        apart = abs(found.foretold - found.served)
        return self._with(found, now, wrong=apart > max(TUNING.sigmas * chance, TUNING.least_gain))

    def expecting(self, forecast: Forecast) -> Trust:
        """Return the trust with a new forecast, unless an older one waits for what comes."""
        return self if self.forecast is not None else replace(self, forecast=forecast)

    def _with(self, found: Checked, now: float, *, wrong: bool) -> Trust:
        in_row = Trust(wrong=self.wrong + 1) if wrong else Trust(right=self.right + 1)
        lost = in_row.wrong >= TUNING.wrong_forecasts or (self.lost and in_row.right < TUNING.right_forecasts)
        return replace(in_row, lost=lost, last=found, checked_at=now)


def _request_seconds(seen: Seen, slo: LatencyTargets) -> float:
    """Return how long after its arrival it is known of nearly every request whether it was inside the promise."""
    answers = seen.made_tokens[seen.ended]
    return slo.ttft_seconds + (float(np.quantile(answers, 0.9)) * slo.tpot_seconds if len(answers) else 0.0)


def _behind(seen: Seen, now: float, slo: LatencyTargets) -> NDArray[np.bool_]:
    """Return which answers under way have fewer tokens than the pace that is promised would have made of them by now.

    Their pace is not known before they end, and slow ones end last.
    """
    streamed_seconds = now - seen.arrival_seconds - slo.ttft_seconds
    return ~seen.ended & ~seen.refused & (streamed_seconds > seen.made_tokens * slo.tpot_seconds)
