"""Flips where nothing is rehearsed: only to a role that is short beyond doubt, and never to make another one short."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.decide.inputs import Inputs, gather
from fulcrum.decide.roles import to_short_role
from fulcrum.decide.split import after
from fulcrum.load.demand import Load
from fulcrum.performance.layout import Layout
from fulcrum.report import plan

WORKERS = 8


def inputs_of(rate: float, isl: float, osl: float, dispersion: float = 1.0) -> Inputs:
    spec = make_spec(pool(low=WORKERS, high=WORKERS), mode="Auto", slo={"ttft": "500ms", "tpot": "25ms"})
    world = World(spec)
    world.measurements = measurements(rate, isl, osl, dispersion=dispersion)
    seen = world.snapshot()
    inputs = gather(seen.spec, seen.workers, seen.status, seen.measurements, world.now)
    assert isinstance(inputs, Inputs)
    return inputs


def divided(prefill: int) -> Layout:
    return Layout.of(prefill={"p": prefill}, decode={"p": WORKERS - prefill})


def flipped(inputs: Inputs, standing: Layout) -> Layout:
    """The split after the flips."""
    movable = Counter({("p", role): standing.count(role) for role in (Role.PREFILL, Role.DECODE)})
    return after(standing, to_short_role(standing, movable, load=inputs.load, model=inputs.model))


def use(inputs: Inputs, layout: Layout, role: Role, load: Load) -> float:
    """Work of a role over what its workers carry."""
    demand = load.prefill if role is Role.PREFILL else load.decode
    return demand.rate / inputs.model.role_rate(layout, load, role)


@pytest.mark.parametrize(("prefill", "load"), [(2, (60.0, 3000.0, 50.0)), (6, (30.0, 200.0, 1000.0))])
def test_a_role_that_cannot_carry_what_comes_gets_workers(prefill: int, load: tuple[float, float, float]) -> None:
    inputs = inputs_of(*load)
    layout = flipped(inputs, divided(prefill))
    assert layout != divided(prefill)
    for role in (Role.PREFILL, Role.DECODE):
        assert use(inputs, layout, role, inputs.load.current) < 1
    assert flipped(inputs, layout) == layout


def test_what_may_carry_the_load_is_left_alone() -> None:
    """Two standard errors below what was measured the role is not short: that it is may be chance."""
    for rate in (10.0, 20.0, 23.0):
        assert flipped(inputs_of(rate, 3000.0, 50.0), divided(2)) == divided(2)


@pytest.mark.parametrize(("prefill", "load"), [(2, (60.0, 3000.0, 50.0)), (7, (30.0, 200.0, 1000.0))])
def test_until_an_answer_has_ended_no_worker_leaves_decode(prefill: int, load: tuple[float, float, float]) -> None:
    """Answers may be ten times as long as those under way: more decode workers are right in any case, fewer are not."""
    sure = inputs_of(*load)
    known = flipped(sure, divided(prefill)).count(Role.PREFILL) - prefill
    assert known
    early = replace(sure, load=replace(sure.load, answers_at_least=True))
    assert flipped(early, divided(prefill)).count(Role.PREFILL) - prefill == min(known, 0)


@settings(max_examples=100, deadline=None)
@given(
    rate=st.floats(1.0, 200.0),
    isl=st.floats(100.0, 5000.0),
    osl=st.floats(10.0, 800.0),
    dispersion=st.sampled_from([1.0, 4.0, 16.0]),
    prefill=st.integers(1, WORKERS - 1),
)
def test_the_busier_role_gets_less_busy_whatever_the_load_may_be(
    *, rate: float, isl: float, osl: float, dispersion: float, prefill: int
) -> None:
    inputs, standing = inputs_of(rate, isl, osl, dispersion), divided(prefill)
    layout = flipped(inputs, standing)
    assume(layout != standing)
    lower, upper = inputs.load.lower, inputs.load.upper
    gains = Role.PREFILL if layout.count(Role.PREFILL) > prefill else Role.DECODE
    worst = replace(lower, decode=upper.decode) if gains is Role.PREFILL else replace(lower, prefill=upper.prefill)
    assert use(inputs, standing, gains, lower) > 1
    for load in (lower, worst):
        before, now = (
            max(use(inputs, each, role, load) for role in (Role.PREFILL, Role.DECODE)) for each in (standing, layout)
        )
        assert now < before


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
    loaded = tuple(replace(worker, load=loads[worker.name]) for worker in seen.workers)
    found = plan(replace(seen, workers=loaded), world.now).conditions
    progressing = next(each for each in found if each.type is ConditionType.PROGRESSING)
    assert progressing.reason is Reason.RECONCILED
    assert progressing.message.count("Flips start engines again") == restart
