"""Which lengths are planned for: those of the requests that arrive, which are not all of those that ended."""

from __future__ import annotations

from dataclasses import replace

from tests.decide.loads import forecast, traffic

from fulcrum.decide.inputs import LoadEstimate, estimate
from fulcrum.decide.measurements import Measurements
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.load.traffic import Traffic

SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.03, attainment=0.95)


def loads(measured: Traffic, **measurements: object) -> LoadEstimate:
    read = estimate(Measurements(traffic=measured, **measurements), SLO)  # type: ignore[arg-type]
    assert isinstance(read, LoadEstimate)
    return read


def test_a_load_is_told_to_people() -> None:
    now = Demand(rate=2.0, isl_tokens=200.4, osl_tokens=30.0)
    assert str(Load.of(now)) == "2 requests/s of 200 + 30 tokens"
    assert str(Load.of(replace(now, rate=1234.0))) == "1,230 requests/s of 200 + 30 tokens"


def test_lengths_that_were_not_measured_are_as_good_as_guessed() -> None:
    ahead = forecast(10.0)
    for measured, role in ((traffic(10.0, osl=None), "osl_tokens"), (traffic(10.0, isl=None), "isl_tokens")):
        read = loads(measured, forecast=ahead)
        least, most = (getattr(load.decode, role) for load in (read.lower, read.upper))
        assert (least, most) == (1.0, 3 * getattr(read.current.decode, role))


def test_what_is_only_expected_is_not_sure() -> None:
    read = loads(traffic(10.0), forecast=forecast(50.0))
    assert read.current.rate == 50.0
    assert read.lower.rate < 10 < read.current.rate < read.upper.rate
