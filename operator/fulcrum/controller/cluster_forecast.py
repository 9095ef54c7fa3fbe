"""The forecast of one cluster's load: made in the background, once per interval."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from fulcrum.api.durations import seconds
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.sources import TICK_SECONDS, Sources, name_of
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide.peak import Peak, peak_of
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.forecast.recurrence import next_load_seconds
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries
from fulcrum.telemetry.source import TelemetrySource, Unknown

logger = logging.getLogger(__name__)

STALE_INTERVALS: Final = 3
"""A forecast may be this many intervals old before it counts for nothing."""
RETRY_SECONDS: Final = 10.0
MOST_INTERVALS: Final = 4320
SEASONS: Final = 3
"""History that is asked for: seasons, at most MOST_INTERVALS intervals."""


class ClusterForecast:
    """Makes one cluster's forecasts, and keeps the latest."""

    def __init__(
        self, sources: Sources, metrics: Metrics, clock: Callable[[], float], unix_time: Callable[[], float]
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._unix_time = unix_time
        self._forecaster: tuple[object, Forecaster] | None = None
        self._made: tuple[float, Forecast] | None = None
        self._due_at = float("-inf")
        self._fallbacks: Counter[str] = Counter()
        self._load_expected_at: float | None = None
        """Unix time at which load is expected next, by the latest history."""
        self.making: asyncio.Task[None] | None = None
        self.peak: Peak | None = None
        """The most over `balance.scaleDown.stabilization`."""

    def latest(self) -> Forecast | None:
        """Return the latest forecast; None: there is none, or it is too old."""
        if self._made is None:
            return None
        made_at, forecast = self._made
        return forecast if self._clock() - made_at <= STALE_INTERVALS * forecast.interval_seconds else None

    @property
    def load_expected_seconds(self) -> float | None:
        """Until load is expected, from earlier days; 0: now. None: not known, or not within a season."""
        at = self._load_expected_at
        return None if at is None else max(0.0, at - self._unix_time())

    def begin(self, cluster: WatchedCluster, source: TelemetrySource, *, start_seconds: float) -> None:
        """Begin the next forecast when it is due. `start_seconds`: how long a Pod takes to become ready."""
        if self.making is None and self._clock() >= self._due_at:
            self.making = asyncio.create_task(
                self._make(cluster, source, start_seconds), name=f"forecast-{cluster.namespace}-{cluster.name}"
            )
            self.making.add_done_callback(partial(self._done, cluster))

    def cancel(self) -> None:
        """End the forecast that is being made."""
        if self.making is not None:
            self.making.cancel()

    async def _make(self, cluster: WatchedCluster, source: TelemetrySource, start_seconds: float) -> None:
        wanted = cluster.spec.balance.forecast
        interval_seconds, season_seconds = seconds(wanted.interval), seconds(wanted.seasonality)
        now = self._unix_time()
        series = await source.load_series(
            cluster.ref,
            interval_seconds=interval_seconds,
            history_seconds=min(SEASONS * season_seconds, MOST_INTERVALS * interval_seconds),
            now=now,
        )
        if isinstance(series, Unknown):
            self._metrics.telemetry_unknown(name_of(cluster.spec), "series")
            self._due_at = self._clock() + min(RETRY_SECONDS, interval_seconds)
            return
        series = self._finite(series)
        ahead_seconds = next_load_seconds(series, season_seconds=season_seconds)
        self._load_expected_at = None if ahead_seconds is None else series.end_seconds + ahead_seconds
        self.peak = peak_of(series, seconds(cluster.spec.balance.scale_down.stabilization))
        forecaster = self._forecaster_for(cluster.spec, season_seconds)
        async with self._sources.forecasts.of(cluster.namespace):
            forecast = await asyncio.to_thread(
                forecaster.update, series, horizon_seconds=_horizon_seconds(cluster.spec, start_seconds)
            )
        # The next one when the interval that runs now is over, and its last scrape is in.
        left_seconds = interval_seconds - self._unix_time() % interval_seconds
        self._due_at = self._clock() + left_seconds + TICK_SECONDS
        for method, count in (forecaster.fallbacks - self._fallbacks).items():
            self._metrics.forecast_fallback(method, count)
            logger.warning(
                "forecast_fell_back namespace=%s cluster=%s why=%r", *cluster.ref.key, forecaster.last_fallback
            )
        self._fallbacks = Counter(forecaster.fallbacks)
        if forecast is not None:
            self._made = (self._clock(), forecast)
            self._metrics.forecast_error(*cluster.ref.key, forecast.method.value, forecast.error)

    def _finite(self, series: LoadSeries) -> LoadSeries:
        """Turn infinite samples into gaps, which the forecast and the peak know how to leave out."""
        parts = {name: getattr(series, name) for name in ("rate", "isl_tokens", "osl_tokens")}
        for name, part in parts.items():
            infinite = np.isinf(part)
            if infinite.any():
                self._metrics.measurement_dropped(f"series_{name}")
                parts[name] = np.where(infinite, np.nan, part)
        return dataclasses.replace(series, **parts)

    def _done(self, cluster: WatchedCluster, task: asyncio.Task[None]) -> None:
        self.making = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._due_at = self._clock() + RETRY_SECONDS
            logger.error("forecast_failed namespace=%s cluster=%s", cluster.namespace, cluster.name, exc_info=error)

    def _forecaster_for(self, spec: InferenceClusterSpec, season_seconds: float) -> Forecaster:
        wanted = spec.balance.forecast
        made_for = (
            wanted.method, wanted.interval, season_seconds, wanted.fixed_quantile, spec.slo.attainment, spec.metrics,
        )  # fmt: skip
        if self._forecaster is None or self._forecaster[0] != made_for:
            forecaster = Forecaster(
                method=wanted.method,
                season_seconds=season_seconds,
                quantile=wanted.fixed_quantile,
                attainment=spec.slo.attainment,
                clock=self._clock,
            )
            self._forecaster, self._fallbacks = (made_for, forecaster), Counter()
        return self._forecaster[1]


def _horizon_seconds(spec: InferenceClusterSpec, start_seconds: float) -> float:
    horizon = spec.balance.forecast.horizon
    return start_seconds + TICK_SECONDS if horizon == "auto" else seconds(horizon)
