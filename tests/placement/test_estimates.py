"""What must hold of the estimates for any demand, however odd: rates are rates, and more never carries less."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.parallelism import ROLES
from fulcrum.placement.search import FINALISTS

EPSILON = 2e-3
"""Of a rate: searches end at so much of it."""

speeds = st.builds(
    lambda a, b, c, da, db, dc, kv, batch, budget, pull: WorkerSpeed(
        coefficients=SpeedCoefficients(prefill_a=a, prefill_b=b, prefill_c=c, decode_a=da, decode_b=db, decode_c=dc),
        kv_capacity_tokens=kv,
        max_batch=batch,
        max_batched_tokens=budget,
        transfer_base_seconds=0.002,
        transfer_seconds_per_token=pull,
    ),
    a=st.floats(0.0, 0.1),
    b=st.floats(1e-6, 1e-3),
    c=st.floats(0.0, 1e-7),
    da=st.floats(1e-3, 0.1),
    db=st.floats(0.0, 1e-3),
    dc=st.floats(0.0, 1e-6),
    kv=st.integers(2_000, 2_000_000),
    batch=st.integers(1, 512),
    budget=st.sampled_from([512, 2048, 8192, 32768]),
    pull=st.sampled_from([1e-6, 2e-4]),
)
demands = st.builds(
    Demand,
    rate=st.floats(0.0, 500.0),
    isl_tokens=st.floats(1.0, 20_000.0),
    osl_tokens=st.floats(1.0, 3_000.0),
    isl_cv2=st.floats(0.0, 6.0),
    osl_cv2=st.floats(0.0, 6.0),
    prefix_hit=st.floats(0.0, 1.0),
    dispersion=st.sampled_from([1.0, 8.0]),
)
promises = st.builds(
    LatencyTargets,
    ttft_seconds=st.sampled_from([0.05, 0.5, 2.0, 10.0]),
    tpot_seconds=st.sampled_from([0.005, 0.05, 0.2]),
    attainment=st.sampled_from([0.5, 0.9, 0.99]),
)
loads = st.tuples(demands, promises)
workers = st.integers(1, 200)

LLAMA_70B = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0079, prefill_b=7.15e-5, prefill_c=1.8e-9, decode_a=0.0157, decode_b=4.42e-5, decode_c=2.69e-8
    ),
    kv_capacity_tokens=456_400,
    max_batch=256,
    max_batched_tokens=8192,
    transfer_base_seconds=0.002,
    transfer_seconds_per_token=2.57e-6,
)
"""In FP8 on two H100, by the roofline."""
SIMULATED = [
    (83.5, 1.0, {3: 0.584, 4: 0.727, 5: 0.841, 6: 0.710, 7: 0.376}),
    (65.5, 1.0, {3: 0.699, 4: 0.847, 5: 0.933, 6: 0.877, 7: 0.469}),
    (47.8, 1.0, {3: 0.847, 4: 0.948, 5: 0.977, 6: 0.981, 7: 0.625}),
    (17.3, 14.4, {3: 0.836, 4: 0.905, 5: 0.943, 6: 0.960, 7: 0.964}),
    (34.1, 16.0, {3: 0.721, 4: 0.819, 5: 0.883, 6: 0.925, 7: 0.802}),
]
"""`benchmarks/splits.py`: requests/s, dispersion, share inside the promise by prefill workers out of eight."""


def rates_of(estimates: FluidEstimates, speed: WorkerSpeed, count: int) -> dict[str, float]:
    """Return the rates of workers of each role alone, and of such workers of both roles."""
    stations = [(speed, count)]
    found = {role.value: estimates.alone(stations, role) for role in ROLES}
    return {**found, "split": estimates.split(stations, stations)}


@settings(max_examples=40, deadline=None)
@given(demands, speeds, promises, workers, st.booleans())
def test_rates_and_shares_are_such(
    demand: Demand, speed: WorkerSpeed, slo: LatencyTargets, count: int, turns_away: bool
) -> None:
    estimates = FluidEstimates(demand, slo, turns_away=turns_away)
    rates = rates_of(estimates, speed, count)
    for name, rate in rates.items():
        assert rate >= 0.0, name
        assert isfinite(rate), name
    stations = [(speed, count)]
    for rate in (1e-6, 1.0, 1e6):
        assert 0.0 <= estimates.share(rate, stations, stations) <= 1.0
    if rates["split"] > 0.0:
        assert estimates.share(rates["split"], stations, stations) >= slo.attainment
        assert estimates.share(rates["split"] * 1.05, stations, stations) < slo.attainment + EPSILON
    assert rates["split"] <= min(rates["prefill"], rates["decode"]) * (1 + 5 * EPSILON)


@settings(max_examples=40, deadline=None)
@given(loads, speeds, workers, st.integers(1, 50), st.booleans())
def test_more_workers_never_carry_less(
    asked: tuple[Demand, LatencyTargets], speed: WorkerSpeed, count: int, more: int, turns_away: bool
) -> None:
    estimates = FluidEstimates(*asked, turns_away=turns_away)
    fewer, all_of_them = (rates_of(estimates, speed, each) for each in (count, count + more))
    for name, rate in fewer.items():
        assert all_of_them[name] >= rate * (1 - EPSILON), name


@settings(max_examples=40, deadline=None)
@given(loads, speeds, workers, st.floats(1.0, 3.0), st.booleans())
def test_longer_requests_are_never_carried_faster(
    asked: tuple[Demand, LatencyTargets], speed: WorkerSpeed, count: int, factor: float, turns_away: bool
) -> None:
    demand, slo = asked
    usual = rates_of(FluidEstimates(demand, slo, turns_away=turns_away), speed, count)
    for field in ("isl_tokens", "osl_tokens"):
        longer = replace(demand, **{field: getattr(demand, field) * factor})
        found = rates_of(FluidEstimates(longer, slo, turns_away=turns_away), speed, count)
        for name, rate in usual.items():
            # What may be waited for a place is counted in places, of which there are fewer for longer requests.
            assert found[name] <= rate * 1.1, (name, field)


@settings(max_examples=40, deadline=None)
@given(loads, st.lists(st.tuples(speeds, workers), min_size=1, max_size=3), st.booleans())
def test_no_worker_exceeds_what_is_said_to_be_most(
    asked: tuple[Demand, LatencyTargets], stations: list[tuple[WorkerSpeed, int]], turns_away: bool
) -> None:
    estimates, places = FluidEstimates(*asked, turns_away=turns_away), sum(count for _, count in stations)
    for role in ROLES:
        most = sum(count * estimates.most(speed, role, places) for speed, count in stations)
        assert estimates.alone(stations, role) <= most * (1 + EPSILON), role


@pytest.mark.parametrize(("rate", "dispersion", "shares"), SIMULATED)
def test_shares_are_near_what_admission_makes_of_a_load(
    rate: float, dispersion: float, shares: dict[int, float]
) -> None:
    slo = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.03, attainment=0.95)
    demand = Demand(rate=rate, isl_tokens=1150, osl_tokens=210, isl_cv2=1.25, osl_cv2=0.9, dispersion=dispersion)
    estimates = FluidEstimates(demand, slo, turns_away=True)
    found = {prefill: estimates.share(rate, [(LLAMA_70B, prefill)], [(LLAMA_70B, 8 - prefill)]) for prefill in shares}
    assert found == pytest.approx(shares, abs=0.14)
    # Splits that the estimates do not tell apart are told apart by playing them.
    best = [prefill for prefill in found if found[prefill] > max(found.values()) - EPSILON]
    assert len(best) <= FINALISTS
    assert max(shares[prefill] for prefill in best) > max(shares.values()) - 0.01


def test_a_ttft_as_short_as_a_full_step_leaves_room_for_fewer_answers_at_once() -> None:
    slo = LatencyTargets(ttft_seconds=0.05, tpot_seconds=0.05, attainment=0.9)
    estimates = FluidEstimates(Demand(rate=0.0, isl_tokens=50.0, osl_tokens=200.0), slo)
    split = estimates.split([(LLAMA_70B, 4)], [(LLAMA_70B, 1)])
    assert 0.0 < split < estimates.alone([(LLAMA_70B, 1)], Role.DECODE)


@pytest.mark.parametrize("cv2", [0.0, 0.5])
def test_workers_without_room_for_one_request_carry_nothing(cv2: float) -> None:
    slo = LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.1, attainment=0.9)
    demand = Demand(rate=0.0, isl_tokens=4000.0, osl_tokens=200.0, isl_cv2=cv2, osl_cv2=cv2)
    small = replace(LLAMA_70B, kv_capacity_tokens=1500)
    estimates = FluidEstimates(demand, slo, turns_away=True)
    assert all(rate > 0.0 for rate in rates_of(estimates, LLAMA_70B, 2).values())
    assert set(rates_of(estimates, small, 2).values()) == {0.0}
