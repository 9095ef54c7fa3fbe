"""What the status says about load: tables."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from fulcrum.api.objects import to_dict
from fulcrum.api.types import ForecastMethod, InferenceClusterStatus, KvTierStatus
from fulcrum.controller.published import differ_in_measurements, keeping_measurements, with_measurements
from fulcrum.decide.measurements import Measurements
from fulcrum.forecast.result import Forecast
from fulcrum.load.traffic import Traffic

TRAFFIC = Traffic(
    window_seconds=30.0,
    rate=3.0,
    attainment=0.91239,
    ttft_p50_seconds=0.12345,
    ttft_p90_seconds=None,
    rejected=1.2,
)
FORECAST = Forecast(
    method=ForecastMethod.HOLT_WINTERS,
    interval_seconds=60.0,
    quantile=0.9,
    rate=(1.0, 2.3456),
    upper_rate=(1.0, 3.0),
    isl_tokens=(1.0, 1234.5),
    osl_tokens=None,
    error=0.12345,
)
FULL = Measurements(traffic=TRAFFIC, forecast=FORECAST)
NOTHING = InferenceClusterStatus()


def test_figures_are_rounded_and_the_end_of_the_horizon_counts() -> None:
    said = to_dict(with_measurements(InferenceClusterStatus(ratio="1P:1D"), FULL, NOTHING))
    assert said["ratio"] == "1P:1D"
    assert said["attainment"] == 0.912
    assert said["ttft"] == {"p50": "123ms"}
    assert "tpot" not in said
    assert said["rejectedRatio"] == 1.0
    assert said["forecast"] == {
        "method": "holtWinters",
        "rate": 2.35,
        "upperRate": 3.0,
        "inputTokens": 1230.0,
        "error": 0.123,
        "horizon": "120s",
    }


def test_what_is_unknown_is_absent() -> None:
    full = with_measurements(NOTHING, FULL, NOTHING)
    assert with_measurements(full, Measurements(), full) == NOTHING
    assert keeping_measurements(NOTHING, full) == full


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"attainment": 0.915}, False),
        ({"attainment": 0.93}, True),
        ({"attainment": 1.0}, True),
        ({"attainment": None}, True),
        ({"ttft_p50_seconds": 0.128}, False),
        ({"ttft_p50_seconds": 0.14}, True),
        ({"ttft_p90_seconds": 0.5}, True),
        ({"tpot_p99_seconds": 0.5}, True),
        ({"queued": 2.0}, True),
        ({"rejected": 0.999}, True),  # all of them, and nearly all of them
        ({"rate": 5.0}, False),
    ],
)
def test_noise_is_no_news(change: dict[str, float | None], is_news: bool) -> None:
    full = with_measurements(NOTHING, FULL, NOTHING)
    measurements = Measurements(traffic=dataclasses.replace(TRAFFIC, **change), forecast=FORECAST)  # type: ignore[arg-type]
    assert (with_measurements(full, measurements, full) != full) is is_news


def test_kv_tiers_are_said_by_pool_and_steady() -> None:
    tiers = KvTierStatus(host_usage=0.41239, host_hits=1.2, host_bytes_per_second=1.23456e10)
    measurements = Measurements(kv_tiers={"h100": tiers})
    full = with_measurements(NOTHING, measurements, NOTHING)
    assert to_dict(full)["kvTiers"] == {"h100": {"hostUsage": 0.412, "hostHits": 1.0, "hostBytesPerSecond": 1.23e10}}
    assert "kvTiers" not in to_dict(NOTHING)
    assert keeping_measurements(NOTHING, full) == full
    near = Measurements(
        kv_tiers={"h100": msgspec.structs.replace(tiers, host_bytes_per_second=1.21e10, host_usage=0.414)}
    )
    assert with_measurements(full, near, full) == full
    far = Measurements(kv_tiers={"h100": msgspec.structs.replace(tiers, host_bytes_per_second=6e8)})
    assert with_measurements(full, far, full) != full
    assert with_measurements(full, Measurements(), full) == NOTHING


def test_a_forecast_of_another_method_is_another_forecast() -> None:
    full = with_measurements(NOTHING, FULL, NOTHING)
    close = dataclasses.replace(FORECAST, rate=(1.0, 2.4))
    assert with_measurements(full, Measurements(traffic=TRAFFIC, forecast=close), full) == full
    other = dataclasses.replace(close, method=ForecastMethod.ARIMA)
    changed = with_measurements(full, Measurements(traffic=TRAFFIC, forecast=other), full)
    assert changed.forecast is not None
    assert (changed.forecast.method, changed.forecast.rate) == ("arima", 2.4)


def test_measurements_alone_are_no_news_and_everything_else_is() -> None:
    last = InferenceClusterStatus(observed_generation=3)
    measured = with_measurements(last, Measurements(traffic=TRAFFIC, forecast=FORECAST), last)
    assert keeping_measurements(measured, last) == last

    def document(version: int, status: InferenceClusterStatus | None, **metadata: str) -> dict[str, object]:
        written = {} if status is None else {"status": to_dict(status)}
        return {"metadata": {"name": "c", "resourceVersion": str(version), **metadata}, "spec": {}, **written}

    assert differ_in_measurements(document(1, last), document(2, measured))
    assert differ_in_measurements(document(2, measured), document(3, last))
    other = msgspec.structs.replace(measured, observed_generation=4)
    assert not differ_in_measurements(document(1, last), document(2, other))
    assert not differ_in_measurements(document(1, None), document(2, measured))
    assert not differ_in_measurements(document(1, last), document(2, measured, deletionTimestamp="now"))
    assert not differ_in_measurements(document(1, last), {**document(2, measured), "spec": {"model": {}}})
