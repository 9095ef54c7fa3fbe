"""What the status says about load: tables."""

from __future__ import annotations

from fulcrum.api.objects import to_dict
from fulcrum.api.types import ForecastMethod, InferenceClusterStatus
from fulcrum.balance.outlook import Outlook, Traffic
from fulcrum.controller.published import keeping_measurements, same_measurements, with_measurements
from fulcrum.forecast.result import Forecast

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


def test_figures_are_rounded_and_the_end_of_the_horizon_counts() -> None:
    status = with_measurements(InferenceClusterStatus(ratio="1P:1D"), Outlook(traffic=TRAFFIC, forecast=FORECAST))
    said = to_dict(status)
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
    full = with_measurements(InferenceClusterStatus(), Outlook(traffic=TRAFFIC, forecast=FORECAST))
    assert with_measurements(full, Outlook()) == InferenceClusterStatus()
    assert keeping_measurements(InferenceClusterStatus(), full) == full


def test_the_same_figures_are_the_same() -> None:
    full = with_measurements(InferenceClusterStatus(), Outlook(traffic=TRAFFIC, forecast=FORECAST))
    assert same_measurements(full, TRAFFIC)
    assert not same_measurements(full, None)
    assert not same_measurements(InferenceClusterStatus(), TRAFFIC)
