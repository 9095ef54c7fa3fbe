"""Which flips pay: for the load that is measured, and for every other that it may be instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.decide.inputs import Inputs, gather
from fulcrum.decide.split import Stakes, after, split
from fulcrum.decide.tuning import TUNING
from fulcrum.performance.layout import Layout
from fulcrum.report import plan

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
    stakes = Stakes(payback_seconds=30.0, fails=False, cost_workers=TUNING.immediate_cost)
    flips = split(inputs.pools, standing, movable, load=inputs.load, model=inputs.model, stakes=stakes)
    return after(standing, flips.moves)


def test_to_do_both_costs_nothing_where_what_stands_is_seen_to_fail() -> None:
    """A worker that decodes goes on with it when it becomes mixed; without evidence all of them count as missing."""
    inputs = inputs_of(60.0, 100.0, 800.0, 1.0, expected=60.0)
    model, standing = inputs.model, divided(1)
    movable = Counter({("p", role): standing.count(role) for role in (Role.PREFILL, Role.DECODE)})
    mixed = Layout.of(mixed={"p": WORKERS})

    def gain(*, fails: bool) -> float:
        stakes = Stakes(payback_seconds=30.0, fails=fails, cost_workers=TUNING.immediate_cost)
        flips = split(inputs.pools, standing, movable, load=inputs.load, model=model, stakes=stakes)
        return next(one.gain for one in flips.considered if one.layout == mixed)

    more = model.goodput(mixed, inputs.load.current) - model.goodput(standing, inputs.load.current)
    assert gain(fails=True) == pytest.approx(30.0 * more)
    assert gain(fails=False) < min(30.0 * more, 0.0)


@pytest.mark.parametrize("prefill", [2, 7])
def test_until_an_answer_has_ended_no_worker_leaves_decode(prefill: int) -> None:
    """Answers may be ten times as long as those under way: more decode workers are right in any case, fewer are not."""
    sure = inputs_of(10.0, 6000.0, 150.0, 1.0, expected=10.0)
    load = replace(sure.load, answers_at_least=True)
    standing = divided(prefill)
    known = flipped(sure, standing).count(Role.PREFILL) - prefill
    assert known * (prefill - 4) < 0
    unknown = flipped(replace(sure, load=load), standing).count(Role.PREFILL) - prefill
    assert unknown == min(known, 0)


@pytest.mark.parametrize(("inside", "rejected", "fails"), [(0.95, 0.05, False), (0.75, 0.25, True), (0.75, 0.0, True)])
def test_what_is_turned_away_counts_as_a_failure_of_what_stands(inside: float, rejected: float, *, fails: bool) -> None:
    known = measurements(60.0, 100.0, 800.0)
    assert known.traffic is not None
    world = World(make_spec(pool(low=WORKERS, high=WORKERS), mode="Auto"))
    world.measurements = replace(known, traffic=replace(known.traffic, attainment=inside, rejected=rejected))
    inputs = gather(world.snapshot(), world.now)
    assert isinstance(inputs, Inputs)
    assert inputs.load.fails is fails


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


@pytest.mark.parametrize("restart", [True, False])
def test_status_says_where_flips_restart_engines(restart: bool) -> None:
    world = World(make_spec(pool(low=2, high=2), ratio=(1, 1)))
    world.settle()
    seen = world.snapshot()
    loads = {
        worker.name: msgspec.structs.replace(worker.load, flips_restart=restart)
        for worker in seen.workers
        if worker.load is not None
    }
    assert len(loads) == 2
    acknowledged = frozenset((worker.uid, worker.restarts, worker.role_epoch) for worker in seen.workers)
    found = plan(seen.with_loads(loads, acknowledged), world.now).conditions
    progressing = next(each for each in found if each.type is ConditionType.PROGRESSING)
    assert progressing.reason is Reason.RECONCILED
    assert progressing.message.count("Flips start engines again") == restart
