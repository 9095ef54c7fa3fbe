"""ARIMA on the log of the rate, with Fourier terms as regressors for the season."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from fulcrum.forecast.model import LEAST_INTERVALS, LEAST_SPREAD, WINDOW_INTERVALS, Budget, FitError, Floats
from fulcrum.forecast.scale import LogScale

_SHAPE: Final = {
    # A stationary start would solve a Lyapunov equation at each step of the fit, which on many cores takes OpenBLAS ten
    # times as long as all the rest.
    "initialization": "approximate_diffuse",
    # All orders are judged by the likelihood of the same intervals, so that AICc compares them across differencing, and
    # of none in which the diffuse start still shows.
    "loglikelihood_burn": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fourier:
    """A constant and sine and cosine pairs of one season, fitted by least squares."""

    season_intervals: float
    coefficients: Floats

    def at(self, index: Floats) -> Floats:
        """Values at intervals counted from the start of the fit."""
        return _waves(index, self.season_intervals, len(self.coefficients) // 2) @ self.coefficients

    @classmethod
    def fit(cls, z: Floats, season_intervals: float) -> Self:
        """Fit to a history with gaps; as many pairs as AICc wants, none before two seasons are there."""
        known = np.flatnonzero(np.isfinite(z)).astype(np.float64)
        target = z[np.isfinite(z)]
        seasons_there = known[-1] + 1 - known[0] >= 2 * season_intervals and season_intervals >= 4
        choices = (0, 1, 2, 3, 4, 6) if seasons_there else (0,)
        waves = _waves(known, season_intervals, choices[-1])
        gram, moment, square = waves.T @ waves, waves.T @ target, float(target @ target)
        best: tuple[float, Floats] | None = None
        for pairs in choices:
            k = 1 + 2 * pairs
            if len(target) <= k + 2 or 2 * pairs > season_intervals - 1:
                break
            coefficients = np.linalg.lstsq(gram[:k, :k], moment[:k])[0]
            remainder = max(square - float(coefficients @ moment[:k]), 1e-12)
            aicc = len(target) * np.log(remainder / len(target)) + 2 * k + 2 * k * (k + 1) / (len(target) - k - 1)
            if best is None or aicc < best[0]:
                best = aicc, coefficients
        assert best is not None
        return cls(season_intervals=season_intervals, coefficients=best[1])


class Arima:
    """Season by Fourier terms, what is left of it by an ARIMA in statsmodels' state space form."""

    def __init__(self, *, scale: LogScale, season: Fourier, result: Any, index: int) -> None:
        self._scale = scale
        self._season = season
        self._result = result
        self._index = index
        """Of the next interval, counted from the start of the fit."""
        self.order: tuple[int, int, int] = result.model.order

    def advance(self, rate: float) -> None:
        z = self._scale.forward(np.array([rate])) - self._season.at(np.array([float(self._index)]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._result = self._result.extend(z)
        self._index += 1

    def path(self, steps: int) -> Floats:
        # What `forecast` of statsmodels does, without its frames and intervals: 0.02 ms instead of 1 ms.
        transition = self._result.model["transition"]
        design = self._result.model["design"][0]
        state = self._result.predicted_state[:, -1]
        z = np.empty(steps)
        for step in range(steps):
            z[step] = design @ state
            state = transition @ state
        return self._scale.backward(z + self._season.at(np.arange(self._index, self._index + steps, dtype=np.float64)))


def fit_arima(rate: Floats, *, season_intervals: float, budget: Budget) -> Arima | None:
    """See `model.Fit`; None below twice `LEAST_INTERVALS` (it has more parameters) or when the season explains all.

    The order is the one with the lowest AICc of those that were fitted within the budget; FitError when none was.
    """
    from statsmodels.tsa.statespace.sarimax import SARIMAX  # type: ignore[import-untyped]

    measured = np.isfinite(rate)
    if np.count_nonzero(measured) < 2 * LEAST_INTERVALS:
        return None
    rate = rate[int(np.argmax(measured)) :]
    scale = LogScale.of(rate)
    z = scale.forward(rate)
    season = Fourier.fit(z, season_intervals)
    left = (z - season.at(np.arange(len(z), dtype=np.float64)))[-WINDOW_INTERVALS:]
    known = left[np.isfinite(left)]
    if len(known) < 2 * LEAST_INTERVALS or np.ptp(known) < LEAST_SPREAD:
        return None
    best: Any = None
    for order in _orders(seasonal=len(season.coefficients) > 1):
        try:
            with warnings.catch_warnings():
                # Start values that are not stationary and an optimum that is not quite reached forecast well
                # enough; the back-test judges them.
                warnings.simplefilter("ignore")
                model = SARIMAX(left, order=order, concentrate_scale=True, **_SHAPE)
                # Later iterations (there are 50 by default) move no forecast.
                result = model.fit(disp=False, maxiter=30, cov_type="none", callback=budget.check)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):
            continue
        except FitError:
            break  # what was fitted before the time was used up serves
        usable = np.isfinite(result.aicc) and np.isfinite(result.predicted_state[:, -1]).all()
        if usable and (best is None or result.aicc < best.aicc):
            best = result
    if best is None:
        budget.check()
        raise FitError("no ARIMA model could be fitted")
    # A scale that is concentrated out makes the fit quicker, but cannot be carried on interval by interval.
    carried = SARIMAX(left, order=best.model.order, **_SHAPE)
    return Arima(scale=scale, season=season, result=carried.filter([*best.params, best.scale]), index=len(rate))


def _orders(*, seasonal: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the orders to choose from.

    While no season is known there is no level that the load returns to, so all of these difference once. (On the
    recorded traces the orders that return to a mean have up to a quarter more error, though AICc likes them.)
    """
    drifting = ((0, 1, 1), (1, 1, 1), (0, 1, 2))
    return ((1, 0, 0), (1, 0, 1), (2, 0, 1), *drifting) if seasonal else drifting


def _waves(index: Floats, season_intervals: float, pairs: int) -> Floats:
    """Columns: 1, then cosine and sine of each of `pairs` harmonics."""
    angle = 2 * np.pi / season_intervals * index
    columns = [np.ones(len(index))]
    for harmonic in range(1, pairs + 1):
        columns += [np.cos(harmonic * angle), np.sin(harmonic * angle)]
    return np.stack(columns, axis=1)
