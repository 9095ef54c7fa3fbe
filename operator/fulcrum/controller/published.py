"""What the status says about load and latency: rounded, steady, and written no more often than it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fulcrum.api.durations import seconds, text_of
from fulcrum.api.quantities import three_digits
from fulcrum.api.types import ForecastStatus, InferenceClusterStatus, KvTierStatus, LatencyQuantiles
from fulcrum.controller.children import Manifest
from fulcrum.decide.measurements import Measurements
from fulcrum.forecast.result import Forecast
from fulcrum.load.traffic import Traffic

PUBLISH_SECONDS: Final = 15.0
"""Least time between two writes of figures that change all the time; any other write takes them along."""
PUBLISH_LOOKS: Final = 3
"""Looks at a calm cluster between two of them: a fleet that takes a whole core is not to take it for figures."""
LEAST_CHANGE: Final = 0.05
"""Relative change of a figure below which the published one stays."""
LEAST_SHARE_CHANGE: Final = 0.005
_LONGEST_SECONDS: Final = 999_999.0
_MEASURED: Final = (
    "attainment",
    "ttft",
    "tpot",
    "rejected_ratio",
    "queued",
    "forecast",
    "kv_tiers",
    "adapters",
    "batches",
)
"""Fields of the status that `with_measurements` sets."""
_MEASURED_KEYS: Final = frozenset(
    each.encode_name for each in msgspec.structs.fields(InferenceClusterStatus) if each.name in _MEASURED
)


def with_measurements(
    status: InferenceClusterStatus, measurements: Measurements, last: InferenceClusterStatus
) -> InferenceClusterStatus:
    """Return the status with what was measured and is expected; what is unknown is absent.

    Figures of `last` stay where the new ones hardly differ from them.
    """
    traffic = measurements.traffic
    return msgspec.structs.replace(
        status,
        attainment=_share(traffic.attainment if traffic else None, last.attainment),
        ttft=_ttft(traffic, last.ttft or LatencyQuantiles()) if traffic else None,
        tpot=_tpot(traffic, last.tpot or LatencyQuantiles()) if traffic else None,
        rejected_ratio=_share(traffic.rejected if traffic else None, last.rejected_ratio),
        queued=_steady(traffic.queued if traffic else None, last.queued),
        forecast=_forecast(measurements.forecast, last.forecast),
        kv_tiers=_kv_tiers(measurements.kv_tiers, last.kv_tiers or {}),
        adapters=measurements.adapters or None,
        batches=measurements.batches,
    )


def keeping_measurements(status: InferenceClusterStatus, last: InferenceClusterStatus) -> InferenceClusterStatus:
    """Return the status with the measurements of the last one."""
    return msgspec.structs.replace(status, **{field: getattr(last, field) for field in _MEASURED})


def differ_in_measurements(one: Manifest, other: Manifest) -> bool:
    """Report whether two states of an InferenceCluster differ in measurements alone: nothing follows from those."""
    plain_one, plain_other = (
        {**each, "metadata": {**each["metadata"], "resourceVersion": ""}, "status": _without_measurements(each)}
        for each in (one, other)
    )
    return plain_one == plain_other


def _without_measurements(document: Manifest) -> Manifest:
    return {name: value for name, value in (document.get("status") or {}).items() if name not in _MEASURED_KEYS}


def _forecast(ahead: Forecast | None, last: ForecastStatus | None) -> ForecastStatus | None:
    if ahead is None or not ahead.rate:
        return None
    was = last if last is not None and last.method == ahead.method.value else None
    return ForecastStatus(
        method=ahead.method.value,
        rate=_steady(ahead.rate[-1], was.rate if was else None) or 0.0,
        upper_rate=_steady(ahead.upper_rate[-1], was.upper_rate if was else None),
        input_tokens=_steady(ahead.isl_tokens[-1] if ahead.isl_tokens else None, was.input_tokens if was else None),
        output_tokens=_steady(ahead.osl_tokens[-1] if ahead.osl_tokens else None, was.output_tokens if was else None),
        error=_steady(ahead.error, was.error if was else None),
        error_against_last_value=_steady(ahead.error_against_last_value, was.error_against_last_value if was else None),
        horizon=_duration(ahead.horizon_seconds),
    )


def _kv_tiers(now: Mapping[str, KvTierStatus], last: Mapping[str, KvTierStatus]) -> dict[str, KvTierStatus] | None:
    return {pool: _kv_tier(tier, last.get(pool, KvTierStatus())) for pool, tier in now.items()} or None


def _kv_tier(now: KvTierStatus, was: KvTierStatus) -> KvTierStatus:
    return KvTierStatus(
        host_usage=_share(now.host_usage, was.host_usage),
        shared_usage=_share(now.shared_usage, was.shared_usage),
        device_hits=_share(now.device_hits, was.device_hits),
        host_hits=_share(now.host_hits, was.host_hits),
        shared_hits=_share(now.shared_hits, was.shared_hits),
        host_bytes_per_second=_steady(now.host_bytes_per_second, was.host_bytes_per_second),
        shared_bytes_per_second=_steady(now.shared_bytes_per_second, was.shared_bytes_per_second),
    )


def _ttft(traffic: Traffic, was: LatencyQuantiles) -> LatencyQuantiles | None:
    return _quantiles((traffic.ttft_p50_seconds, traffic.ttft_p90_seconds, traffic.ttft_p99_seconds), was)


def _tpot(traffic: Traffic, was: LatencyQuantiles) -> LatencyQuantiles | None:
    return _quantiles((traffic.tpot_p50_seconds, traffic.tpot_p90_seconds, traffic.tpot_p99_seconds), was)


def _quantiles(
    measured_seconds: tuple[float | None, float | None, float | None], was: LatencyQuantiles
) -> LatencyQuantiles | None:
    p50, p90, p99 = measured_seconds
    if p50 is p90 is p99 is None:
        return None
    return LatencyQuantiles(p50=_latency(p50, was.p50), p90=_latency(p90, was.p90), p99=_latency(p99, was.p99))


def _latency(now_seconds: float | None, was: str | None) -> str | None:
    return _duration(_steady(now_seconds, seconds(was) if was is not None else None))


def _duration(duration_seconds: float | None) -> str | None:
    return None if duration_seconds is None else text_of(min(max(0.0, duration_seconds), _LONGEST_SECONDS))


def _share(now: float | None, was: float | None) -> float | None:
    if now is None:
        return None
    share = min(1.0, max(0.0, now))
    if was is not None and abs(share - was) < LEAST_SHARE_CHANGE and (share in (0.0, 1.0)) == (was in (0.0, 1.0)):
        return was
    return round(share, 3)


def _steady(now: float | None, was: float | None) -> float | None:
    """The last value while the new one is close to it, else the new one to three digits."""
    if now is None:
        return None
    if was is not None and abs(now - was) <= LEAST_CHANGE * abs(was):
        return was
    return three_digits(now)
