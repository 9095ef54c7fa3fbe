"""When fewer requests are inside the SLO than the model says, and when that is left alone."""

from __future__ import annotations

from datetime import timedelta

from tests.balance.small_workers import SLO, SPEED
from tests.balance.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.balance.calibrate import calibrated
from fulcrum.balance.estimate import LoadEstimate, estimate
from fulcrum.balance.measurements import Measurements
from fulcrum.load.traffic import Traffic
from fulcrum.performance.model import PerformanceModel

WINDOW_SECONDS = 60.0


def after_a_while(traffic: Traffic, *, flipped_before_seconds: float | None = None) -> LoadEstimate | None:
    """Two workers in each role that stood for an hour; what the loads of `traffic` are corrected to."""
    world = World(make_spec(pool(high=4), ratio=(2, 2)))
    world.settle()
    world.pass_time(3600)
    if flipped_before_seconds is not None:
        world.set("c-p-0", role_since=world.now - timedelta(seconds=flipped_before_seconds))
    assert sorted(worker.role for worker in world.workers.values()) == [Role.DECODE] * 2 + [Role.PREFILL] * 2
    world.measurements = Measurements(traffic=traffic, speeds={"p": SPEED})
    snapshot = world.snapshot()
    loads = estimate(world.measurements, snapshot.workers, SLO, payback_seconds=30)
    assert isinstance(loads, LoadEstimate)
    model = PerformanceModel({"p": SPEED}, SLO)
    return calibrated(loads, model, SLO, traffic=traffic, workers=snapshot.workers, now=world.now)


def traffic(*, attainment: float, window_seconds: float = WINDOW_SECONDS, served: float | None = None) -> Traffic:
    return Traffic(
        window_seconds=window_seconds,
        served_window_seconds=served,
        rate=0.5,
        isl_tokens=195,
        osl_tokens=10,
        isl_cv2=0.1,
        osl_cv2=0.1,
        attainment=attainment,
        ttft_p90_seconds=9.0,
        tpot_p90_seconds=0.1,
    )


def test_some_more_load_explains_some_more_misses() -> None:
    found = after_a_while(traffic(attainment=0.6))
    assert found is not None
    assert found.current.prefill.rate > 0.5
    assert found.current.decode.rate == 0.5


def test_what_no_load_explains_is_not_calibrated() -> None:
    """Nothing in time though the model serves nearly all even at four times the load: that is another fault."""
    idle = Traffic(
        window_seconds=WINDOW_SECONDS,
        rate=0.01,
        isl_tokens=50,
        osl_tokens=10,
        isl_cv2=0.1,
        osl_cv2=0.1,
        attainment=0.0,
        ttft_p90_seconds=9.0,
        tpot_p90_seconds=0.1,
    )
    assert after_a_while(idle) is None


def test_a_change_within_the_window_of_attainment_counts_though_arrivals_are_newer() -> None:
    """The newest prompts shorten the window of arrivals, but attainment is still that of the whole window."""
    changed = traffic(attainment=0.6, window_seconds=12.0, served=WINDOW_SECONDS)
    assert after_a_while(changed, flipped_before_seconds=30.0) is None
    assert after_a_while(changed, flipped_before_seconds=90.0) is not None
