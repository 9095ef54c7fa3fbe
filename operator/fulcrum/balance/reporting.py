"""Figures of the status: what was measured and forecast, rewritten only when it has left the noise of what stands."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Final

import msgspec

from fulcrum.api.durations import seconds, text_of
from fulcrum.api.types import Duration, ForecastStatus, InferenceClusterStatus, LatencyQuantiles
from fulcrum.balance.load import NOISE_SIGMAS
from fulcrum.balance.outlook import Outlook, Traffic
from fulcrum.forecast.result import Forecast

LEAST_CHANGE: Final = 0.05
"""Smaller relative changes of a figure are not news to anybody, and each would be a write."""
QUANTILE_SPREAD: Final = 2.0
"""Relative standard error of a latency quantile of n requests, times sqrt(n): about that of exponential times."""


def figures(
    status: InferenceClusterStatus, standing: InferenceClusterStatus, outlook: Outlook
) -> InferenceClusterStatus:
    """Return `status` with the figures of `outlook`; what is unknown is absent."""
    traffic, forecast = outlook.traffic, outlook.forecast
    before = standing.forecast
    return msgspec.structs.replace(
        status,
        attainment=_share(traffic, traffic.attainment if traffic else None, standing.attainment),
        rejected_ratio=_share(traffic, traffic.rejected if traffic else None, standing.rejected_ratio),
        ttft=_quantiles(traffic, "ttft", standing.ttft),
        tpot=_quantiles(traffic, "tpot", standing.tpot),
        forecast=_forecast(forecast, before) if forecast is not None and forecast.rate else None,
    )


def _forecast(forecast: Forecast, before: ForecastStatus | None) -> ForecastStatus:
    def keep(now: float | None, was: float | None) -> float | None:
        return steady(now, was, change=LEAST_CHANGE)

    highest = max(range(len(forecast.upper_rate)), key=lambda step: forecast.upper_rate[step])
    old = before if before is not None and before.method == forecast.method.value else None
    return ForecastStatus(
        method=forecast.method.value,
        rate=keep(max(forecast.rate), old.rate if old else None) or 0.0,
        upper_rate=keep(forecast.upper_rate[highest], old.upper_rate if old else None),
        input_tokens=keep(
            forecast.isl_tokens[highest] if forecast.isl_tokens else None, old.input_tokens if old else None
        ),
        output_tokens=keep(
            forecast.osl_tokens[highest] if forecast.osl_tokens else None, old.output_tokens if old else None
        ),
        error=keep(forecast.error, old.error if old else None),
        error_against_last_value=keep(forecast.error_against_last_value, old.error_against_last_value if old else None),
        horizon=_duration(forecast.horizon_seconds),
    )


def _share(traffic: Traffic | None, now: float | None, was: float | None) -> float | None:
    if traffic is None or now is None:
        return None
    share = min(max(now, 0.0), 1.0)
    seen = max(traffic.rate * traffic.window_seconds, 1.0)
    # The share that stands says how much the next one may differ by chance; at 0 and 1 one request may.
    deviation = NOISE_SIGMAS * sqrt(max((was or share) * (1 - (was or share)), 1 / seen) / seen)
    if was is not None and abs(share - was) <= deviation and (share in (0.0, 1.0)) == (was in (0.0, 1.0)):
        return was
    return round(share, 3)


def _quantiles(traffic: Traffic | None, name: str, was: LatencyQuantiles | None) -> LatencyQuantiles | None:
    if traffic is None:
        return None
    p50, p90 = getattr(traffic, f"{name}_p50_seconds"), getattr(traffic, f"{name}_p90_seconds")
    if p50 is None and p90 is None:
        return None
    seen = max(traffic.rate * traffic.window_seconds, 1.0)
    change = max(LEAST_CHANGE, QUANTILE_SPREAD / sqrt(seen))
    old = was or LatencyQuantiles()
    return LatencyQuantiles(p50=_latency(p50, old.p50, change), p90=_latency(p90, old.p90, change))


def _latency(now: float | None, was: Duration | None, change: float) -> Duration | None:
    if now is None:
        return None
    kept = steady(now, seconds(was) if was is not None else None, change=change)
    return _duration(kept if kept is not None else now)


def _duration(duration_seconds: float) -> Duration | None:
    return text_of(duration_seconds) if isfinite(duration_seconds) and 0 <= duration_seconds < 1e6 else None


def steady(now: float | None, was: float | None, *, change: float) -> float | None:
    """Return `was` while `now` is within the relative `change` of it; else `now` to three digits."""
    if now is None or not isfinite(now):
        return None
    if was is not None and abs(now - was) <= change * abs(was):
        return was
    return float(f"{now:.3g}")
