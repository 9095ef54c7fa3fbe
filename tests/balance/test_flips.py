"""Which flips pay: for the load that is measured, and for every other that it may be instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.balance.loads import outlook
from tests.balance.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.balance.auto import Sight, look
from fulcrum.balance.flips import IMMEDIATE_COST, LAST_ERROR, SPLIT_ERROR, Stakes, after, paying_moves
from fulcrum.balance.load import NOISE_SIGMAS
from fulcrum.performance.layout import Layout

WORKERS = 8


def sight_of(rate: float, isl: float, osl: float, dispersion: float, *, expected: float) -> Sight:
    spec = make_spec(pool(low=WORKERS, high=WORKERS), mode="Auto", slo={"ttft": "500ms", "tpot": "25ms"})
    world = World(spec)
    known = outlook(expected, isl, osl, dispersion=dispersion)
    assert known.traffic is not None
    world.outlook = replace(known, traffic=replace(known.traffic, rate=rate))
    sight = look(world.snapshot(), world.now)
    assert isinstance(sight, Sight)
    return sight


def split(prefill: int) -> Layout:
    return Layout.of(prefill={"p": prefill}, decode={"p": WORKERS - prefill})


def flipped(sight: Sight, standing: Layout) -> Layout:
    """The split after the flips that pay."""
    movable = Counter({("p", role): standing.count(role) for role in (Role.PREFILL, Role.DECODE)})
    stakes = Stakes(payback_seconds=30.0, cost_workers=IMMEDIATE_COST)
    moves = paying_moves(sight.rooms, standing, movable, loads=sight.loads, service=sight.service, stakes=stakes)
    return after(standing, moves)


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(1.0, 120.0),
    isl=st.floats(100.0, 5000.0),
    osl=st.floats(10.0, 800.0),
    dispersion=st.sampled_from([1.0, 4.0, 16.0]),
    prefill=st.integers(1, WORKERS - 1),
    ahead=st.sampled_from([0.8, 1.0, 1.5]),
)
def test_a_flip_is_no_loss_whatever_the_load_may_be(
    *, rate: float, isl: float, osl: float, dispersion: float, prefill: int, ahead: float
) -> None:
    sight = sight_of(rate, isl, osl, dispersion, expected=rate * ahead)
    standing = split(prefill)
    layout = flipped(sight, standing)
    if layout == standing:
        return
    event("flips")
    near, noise, service = sight.loads.near, sight.loads.noise, sight.service
    for other in (
        sight.loads.sure,
        near.with_rate(near.rate * (1 + NOISE_SIGMAS * noise.rate)),
        near.with_rate(sight.loads.measured_rate),
    ):
        assert service.goodput(layout, other) > service.goodput(standing, other)
    alone = any(layout.count(role) == 1 < standing.count(role) for role in (Role.PREFILL, Role.DECODE))
    gain = (service.goodput(layout, near) - service.goodput(standing, near)) / near.rate
    assert gain > (LAST_ERROR if alone else SPLIT_ERROR)


def test_a_role_is_left_to_one_worker_only_for_what_is_beyond_doubt() -> None:
    """The same small gain moves a worker from three to two, and not from two to one."""
    found = set()
    for rate in range(10, 120, 2):
        for isl in (1000.0, 2000.0, 4000.0):
            sight = sight_of(float(rate), isl, 100.0, 1.0, expected=float(rate))
            for prefill in (5, 6):
                near = sight.loads.near
                best = max(sight.service.goodput(split(k), near) for k in range(1, WORKERS))
                gain = (best - sight.service.goodput(split(prefill), near)) / near.rate
                if SPLIT_ERROR < gain <= LAST_ERROR:
                    found.add((prefill, flipped(sight, split(prefill)).count(Role.PREFILL)))
    assert (5, 6) in found
    assert (6, 6) in found
    assert (6, 7) not in found
