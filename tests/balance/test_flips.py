"""Which flips pay: for the load that is measured, and for every other that it may be instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.balance.loads import measurements
from tests.balance.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.balance.inputs import Inputs, gather
from fulcrum.balance.split import Stakes, after, split
from fulcrum.balance.tuning import TUNING
from fulcrum.performance.layout import Layout

WORKERS = 8


def inputs_of(rate: float, isl: float, osl: float, dispersion: float, *, expected: float) -> Inputs:
    spec = make_spec(pool(low=WORKERS, high=WORKERS), mode="Auto", slo={"ttft": "500ms", "tpot": "25ms"})
    world = World(spec)
    known = measurements(expected, isl, osl, dispersion=dispersion)
    assert known.traffic is not None
    world.measurements = replace(known, traffic=replace(known.traffic, rate=rate))
    inputs = gather(world.snapshot(), world.now)
    assert isinstance(inputs, Inputs)
    return inputs


def divided(prefill: int) -> Layout:
    return Layout.of(prefill={"p": prefill}, decode={"p": WORKERS - prefill})


def flipped(inputs: Inputs, standing: Layout) -> Layout:
    """The split after the flips that pay."""
    movable = Counter({("p", role): standing.count(role) for role in (Role.PREFILL, Role.DECODE)})
    stakes = Stakes(payback_seconds=30.0, cost_workers=TUNING.immediate_cost)
    flips = split(inputs.pools, standing, movable, load=inputs.load, model=inputs.model, stakes=stakes)
    return after(standing, flips.moves)


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
    inputs = inputs_of(rate, isl, osl, dispersion, expected=rate * ahead)
    standing = divided(prefill)
    layout = flipped(inputs, standing)
    if layout == standing:
        return
    event("flips")
    current, model = inputs.load.current, inputs.model
    for other in inputs.load.bounds:
        assert model.goodput(layout, other) > model.goodput(standing, other)
    gain = (model.goodput(layout, current) - model.goodput(standing, current)) / current.rate
    assert gain > TUNING.estimate_error
