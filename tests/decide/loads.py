"""Speeds and measurements for tests of the automatic modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fulcrum.api.types import ForecastMethod
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.peak import Busiest, Peak
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic


def speed(*, prefill: float = 1.0, decode: float = 1.0, **changes: Any) -> WorkerSpeed:
    """A worker like one H100 with an 8B model; `prefill` and `decode` are factors on how fast it is."""
    coefficients = SpeedCoefficients(
        prefill_a=0.010 / prefill,
        prefill_b=25e-6 / prefill,
        prefill_c=1e-10 / prefill,
        decode_a=0.008 / decode,
        decode_b=60e-6 / decode,
        decode_c=50e-9 / decode,
    )
    return WorkerSpeed(
        coefficients=coefficients, kv_capacity_tokens=changes.pop("kv_capacity_tokens", 500_000), **changes
    )


def traffic(rate: float, isl: float | None = 2000.0, osl: float | None = 200.0, **changes: Any) -> Traffic:
    return Traffic(
        window_seconds=changes.pop("window_seconds", 30.0), rate=rate, isl_tokens=isl, osl_tokens=osl, **changes
    )


def forecast(
    rate: float, upper: float | None = None, *, steps: int = 5, isl: float = 2000.0, osl: float = 200.0
) -> Forecast:
    """The same for each of `steps` minutes."""
    return Forecast(
        method=ForecastMethod.LAST_VALUE,
        interval_seconds=60.0,
        quantile=0.9,
        rate=(rate,) * steps,
        upper_rate=(rate if upper is None else upper,) * steps,
        isl_tokens=(isl,) * steps,
        osl_tokens=(osl,) * steps,
    )


def peak(rate: float, isl: float = 2000.0, osl: float = 200.0) -> Peak:
    return Peak(rate=rate, prompts=Busiest(rate=rate, tokens=isl), outputs=Busiest(rate=rate, tokens=osl))


def series(rate: list[float], isl: list[float], osl: list[float]) -> LoadSeries:
    """Minutes of load."""
    return LoadSeries(
        interval_seconds=60, end_seconds=0, rate=np.array(rate), isl_tokens=np.array(isl), osl_tokens=np.array(osl)
    )


def measurements(
    rate: float, isl: float = 2000.0, osl: float = 200.0, *, pools: tuple[str, ...] = ("p",), **changes: Any
) -> Measurements:
    """A stationary load: now, ahead and as far back as anybody looks."""
    upper = changes.pop("upper", rate)
    peak_rate = changes.pop("peak_rate", rate)
    speeds = changes.pop("speeds", {name: speed() for name in pools})
    return Measurements(
        traffic=traffic(rate, isl, osl, **changes),
        forecast=forecast(rate, upper, isl=isl, osl=osl),
        speeds=speeds,
        start_seconds=120.0,
        peak=None if peak_rate is None else peak(peak_rate, isl, osl),
    )
