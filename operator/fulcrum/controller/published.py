"""What the status says about load and latency: rounded, and written no more often than anybody reads it."""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.api.durations import text_of
from fulcrum.api.types import ForecastStatus, InferenceClusterStatus, LatencyQuantiles
from fulcrum.balance.outlook import Outlook, Traffic

PUBLISH_SECONDS: Final = 15.0
"""Figures that change all the time are written this often; with anything else that is written, they go along."""
_LONGEST_SECONDS: Final = 999_999.0


def with_measurements(status: InferenceClusterStatus, outlook: Outlook) -> InferenceClusterStatus:
    """Return the status with what was measured and is expected; what is unknown is absent."""
    traffic = outlook.traffic
    return msgspec.structs.replace(
        status,
        attainment=_share(traffic.attainment if traffic else None),
        ttft=_quantiles(traffic.ttft_p50_seconds, traffic.ttft_p90_seconds) if traffic else None,
        tpot=_quantiles(traffic.tpot_p50_seconds, traffic.tpot_p90_seconds) if traffic else None,
        rejected_ratio=_share(traffic.rejected if traffic else None),
        forecast=_forecast(outlook),
    )


def keeping_measurements(status: InferenceClusterStatus, standing: InferenceClusterStatus) -> InferenceClusterStatus:
    """Return the status with the measurements that stand."""
    return msgspec.structs.replace(
        status,
        attainment=standing.attainment,
        ttft=standing.ttft,
        tpot=standing.tpot,
        rejected_ratio=standing.rejected_ratio,
        forecast=standing.forecast,
    )


def same_measurements(status: InferenceClusterStatus, traffic: Traffic | None) -> bool:
    """Report whether the status says of `traffic` what it would be written to say."""
    return with_measurements(status, Outlook(traffic=traffic)) == msgspec.structs.replace(status, forecast=None)


def _forecast(outlook: Outlook) -> ForecastStatus | None:
    ahead = outlook.forecast
    if ahead is None or not ahead.rate:
        return None
    return ForecastStatus(
        method=ahead.method.value,
        rate=_rounded(ahead.rate[-1]),
        upper_rate=_rounded(ahead.upper_rate[-1]),
        input_tokens=_rounded(ahead.isl_tokens[-1]) if ahead.isl_tokens else None,
        output_tokens=_rounded(ahead.osl_tokens[-1]) if ahead.osl_tokens else None,
        error=_rounded(ahead.error) if ahead.error is not None else None,
        error_against_last_value=(
            _rounded(ahead.error_against_last_value) if ahead.error_against_last_value is not None else None
        ),
        horizon=text_of(min(ahead.horizon_seconds, _LONGEST_SECONDS)),
    )


def _quantiles(p50_seconds: float | None, p90_seconds: float | None) -> LatencyQuantiles | None:
    if p50_seconds is None and p90_seconds is None:
        return None
    return LatencyQuantiles(p50=_duration(p50_seconds), p90=_duration(p90_seconds))


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else text_of(min(max(0.0, seconds), _LONGEST_SECONDS))


def _share(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, max(0.0, value)), 3)


def _rounded(value: float) -> float:
    """Three digits: the fourth is noise."""
    return float(f"{value:.3g}")
