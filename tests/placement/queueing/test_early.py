"""Goodput with early rejection: what is left of a load that is too much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.placement.queueing.test_bursts import SPEED
from tests.placement.queueing.test_properties import demands, speeds, targets, workers
from tests.placement.queueing.throughput import decode_throughput

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.estimates import QueueingEstimates
from fulcrum.placement.queueing import decode_admitted, prefill_attainment

EPSILON = 1e-3
SEAM = 0.02
"""By how much the two formulas may differ where one takes over from the other, at saturation."""
STEPS = 5
"""A promise is worth that many of the shortest steps. Below, estimates are too low at light load: who waits for the
step under way, and then takes one, is nearly late (docs/concepts/sizing.md)."""
SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.03, attainment=0.95)

SIMULATED = [
    (83.5, 1.0, {3: 0.584, 4: 0.727, 5: 0.841, 6: 0.710, 7: 0.376}),
    (65.5, 1.0, {3: 0.699, 4: 0.847, 5: 0.933, 6: 0.877, 7: 0.469}),
    (47.8, 1.0, {3: 0.847, 4: 0.948, 5: 0.977, 6: 0.981, 7: 0.625}),
    (17.3, 14.4, {3: 0.836, 4: 0.905, 5: 0.943, 6: 0.960, 7: 0.964}),
    (34.1, 16.0, {3: 0.721, 4: 0.819, 5: 0.883, 6: 0.925, 7: 0.802}),
]
"""`benchmarks/splits.py`: requests/s, dispersion, share inside the SLO by prefill workers out of eight."""


@pytest.mark.parametrize(("rate", "dispersion", "shares"), SIMULATED)
def test_estimates_are_near_what_admission_makes_of_an_overload(
    rate: float, dispersion: float, shares: dict[int, float]
) -> None:
    demand = Demand(rate=rate, isl_tokens=1150, osl_tokens=210, isl_cv2=1.25, osl_cv2=0.9, dispersion=dispersion)
    estimates = QueueingEstimates(demand, SLO, turns_away=True)
    found = {prefill: estimates.split(rate, [(SPEED, prefill)], [(SPEED, 8 - prefill)]) for prefill in shares}
    assert found == pytest.approx(shares, abs=0.09)
    best = max(found, key=lambda prefill: found[prefill])
    assert shares[best] > max(shares.values()) - 0.01


@given(
    demand=demands,
    speed=speeds,
    count=workers,
    tpot=st.sampled_from([0.02, 0.05, 0.2]),
    wait=st.sampled_from([0.0, 0.1, 10.0]),
)
@example(
    # The link was not asked where no wait was allowed: all were let in, and with a wait 0.5 % of them.
    demand=Demand(rate=33.0, isl_tokens=17_775.0, osl_tokens=1.2, isl_cv2=2.9, osl_cv2=0.0, prefix_hit=0.1),
    speed=replace(SPEED, kv_capacity_tokens=235_028, max_batch=382, transfer_seconds_per_token=2e-4),
    count=1,
    tpot=0.02,
    wait=0.1,
)
@example(
    # A prompt on its way took memory away from a worker that holds one request: it then held none.
    demand=Demand(rate=4.5, isl_tokens=4_560.0, osl_tokens=7.2, isl_cv2=0.0, osl_cv2=2.7, prefix_hit=0.235),
    speed=replace(SPEED, kv_capacity_tokens=6_611, max_batch=185, transfer_seconds_per_token=2e-4),
    count=4,
    tpot=0.05,
    wait=10.0,
)
def test_no_more_is_let_in_than_can_be_decoded(
    demand: Demand, speed: WorkerSpeed, count: int, tpot: float, wait: float
) -> None:
    stations = [(speed, count)]
    admitted = decode_admitted(demand, stations, tpot_seconds=tpot, wait_seconds=wait)
    assert admitted * demand.rate <= decode_throughput(demand, stations) * (1 + EPSILON) + EPSILON
    assert admitted >= decode_admitted(demand, stations, tpot_seconds=tpot) - EPSILON


@given(demand=demands, speed=speeds, count=workers, target=targets, factor=st.floats(1.0, 20.0))
def test_heavier_overload_never_leaves_a_larger_share(
    demand: Demand, speed: WorkerSpeed, count: int, target: float, factor: float
) -> None:
    assume(target >= STEPS * speed.coefficients.prefill_a)
    heavier = replace(demand, rate=demand.rate * factor)
    light, heavy = (
        prefill_attainment(each, [(speed, count)], ttft_seconds=target, early=True) for each in (demand, heavier)
    )
    assert 0.0 <= heavy <= light + SEAM


def test_a_slow_worker_beside_fast_ones_helps_in_an_overload() -> None:
    """It does a quarter of what two fast ones do; what these cannot do, which is more, would not all be sent to it."""
    k = SPEED.coefficients
    slow = replace(
        SPEED,
        coefficients=SpeedCoefficients(
            prefill_a=2 * k.prefill_a,
            prefill_b=2 * k.prefill_b,
            prefill_c=2 * k.prefill_c,
            decode_a=k.decode_a,
            decode_b=k.decode_b,
            decode_c=k.decode_c,
        ),
    )
    demand = Demand(rate=45.0, isl_tokens=1150, osl_tokens=210, isl_cv2=1.25)
    alone = prefill_attainment(demand, [(SPEED, 2)], ttft_seconds=5.0, early=True)
    both = prefill_attainment(demand, [(SPEED, 2), (slow, 1)], ttft_seconds=5.0, early=True)
    assert 0.3 < alone < 0.9
    assert both > 1.1 * alone
