"""Plans say what is to be rehearsed, and act on the answer for just the state that it was asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.decide.loads import measurements, traffic
from tests.decide.world import START, World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.decide.rehearsed import Checked, PlayedLayout, Rehearsed, Wanted
from fulcrum.performance.layout import Layout
from fulcrum.report import BalancePlan
from fulcrum.rollout import CreateWorker, SetRole

WORKERS = 8
LATE, WELL = 0.6, 0.98
"""Attainments; nine of ten are promised."""


def make_world(*, prefill: int = 4, mode: str = "Auto", attainment: float | None = LATE, **spec: object) -> World:
    """Eight workers that serve, long settled, under a load that they do not keep the promise for."""
    pools = spec.pop("pools", [pool(low=WORKERS, high=WORKERS)])
    world = World(make_spec(*pools, mode=mode, ratio=(prefill, WORKERS - prefill), slo={"attainment": 0.9}, **spec))  # type: ignore[misc]
    known = measurements(60.0)
    world.measurements = replace(
        known, traffic=replace(known.traffic or traffic(60.0), attainment=attainment), rehearses=True
    )
    blind = replace(world.measurements, traffic=None)
    seen, world.measurements = world.measurements, blind
    for action in world.plan().actions:
        world.do(action)
    for place, name in enumerate(sorted(world.workers)):
        world.start(name)
        world.set(name, role=Role.PREFILL if place < prefill else Role.DECODE)
    world.measurements = seen
    world.now = START + timedelta(minutes=5)
    return world


def split(prefill: int) -> Layout:
    return Layout.of(prefill={"p": prefill}, decode={"p": WORKERS - prefill})


def wanted_of(world: World) -> Wanted:
    wanted = world.plan().wanted
    assert wanted is not None
    return wanted


def answered(wanted: Wanted, chosen: Layout, *, key: str | None = None) -> Rehearsed:
    compared = [PlayedLayout(layout=wanted.standing, inside=0.61)]
    if chosen != wanted.standing:
        compared.append(PlayedLayout(layout=chosen, inside=0.93))
    return Rehearsed(
        key=wanted.key if key is None else key, time=START, chosen=chosen, compared=tuple(compared), requests=400,
        future_seconds=120.0, gain=128.0, error=11.0, off=-0.12,
    )  # fmt: skip


def tell(world: World, rehearsed: Rehearsed) -> BalancePlan:
    world.measurements = replace(world.measurements, rehearsed=rehearsed)
    return world.plan()


def roles_of(decided: BalancePlan) -> list[Role]:
    return [action.role for action in decided.actions if isinstance(action, SetRole)]


def test_what_stands_is_to_be_rehearsed_and_nothing_flips_meanwhile() -> None:
    world = make_world(prefill=7)
    decided = world.plan()
    assert roles_of(decided) == []
    assert decided.wanted is not None
    assert (decided.wanted.standing, decided.wanted.flexible, decided.wanted.mixes) == (split(7), {"p"}, True)
    assert decided.wanted.stands_since == START
    assert wanted_of(world).key == decided.wanted.key, "the same state is the same question"


def test_the_answer_flips_the_fewest_workers_and_is_explained() -> None:
    world = make_world(prefill=4)
    decided = tell(world, answered(wanted_of(world), split(6)))
    assert roles_of(decided) == [Role.PREFILL] * 2
    decision, status = decided.status.last_decision, decided.status.rehearsal
    assert decision is not None
    assert decision.reason in (Reason.LOAD_SHIFTED, Reason.LOAD_FORECAST)
    assert decision.explanation is not None
    assert [(one.layout, one.attainment) for one in decision.explanation.candidates[-2:]] == [
        ("4P:4D", 0.61), ("6P:2D", 0.93),
    ]  # fmt: skip
    assert decision.explanation.candidates[-1].verdict.startswith("chosen: +128.0 requests, with an error of 11.0")
    assert status is not None
    assert (status.stood, status.best, status.chosen, status.requests) == ("4P:4D", "6P:2D", "6P:2D", 400)
    assert (status.gain, status.error, status.off) == (128.0, 11.0, -0.12)


def test_an_answer_that_keeps_what_stands_flips_nothing_and_the_question_goes_on() -> None:
    world = make_world()
    wanted = wanted_of(world)
    decided = tell(world, answered(wanted, wanted.standing))
    assert (roles_of(decided), decided.wanted) == ([], wanted)
    assert decided.status.rehearsal is not None
    assert (decided.status.rehearsal.best, decided.status.rehearsal.error) == ("4P:4D", None)


def test_an_answer_that_takes_several_steps_is_carried_out_whole() -> None:
    """Workers that have just changed wait, and the others go on; the answer is about the same workers."""
    world = make_world(prefill=4)
    answer = answered(wanted_of(world), split(7))
    names = sorted(name for name, worker in world.workers.items() if worker.role is Role.DECODE)
    world.set(names[-1], role_since=world.now - timedelta(seconds=10))
    world.set(names[-2], role_since=world.now - timedelta(seconds=10))
    first = tell(world, answer)
    assert roles_of(first) == [Role.PREFILL] * 2
    for action in first.actions:
        world.do(action)
    world.now += timedelta(seconds=21)
    second = world.plan()
    assert second.wanted is None, "it is not there yet"
    assert roles_of(second) == [Role.PREFILL]
    for action in second.actions:
        world.do(action)
    assert Counter(worker.role for worker in world.workers.values()) == {Role.PREFILL: 7, Role.DECODE: 1}
    world.now += timedelta(seconds=31)
    assert roles_of(world.plan()) == []


def test_workers_that_do_both_stay_so_when_one_is_replaced() -> None:
    world = make_world()
    for name in world.workers:
        world.set(name, role=Role.MIXED)
    del world.workers[min(world.workers)]
    for _ in range(4):
        decided = world.plan()
        assert roles_of(decided) == []
        for action in decided.actions:
            world.do(action)
        for name in world.workers:
            world.start(name)
        world.now += timedelta(seconds=31)
    assert {worker.role for worker in world.workers.values()} == {Role.MIXED}
    assert len(world.workers) == WORKERS


@pytest.mark.parametrize("changed", ["restart", "gone", "role", "promise", "admits"])
def test_the_answer_for_another_state_is_not_acted_on(changed: str) -> None:
    world = make_world()
    answer = answered(wanted_of(world), split(6))
    name = min(world.workers)
    if changed == "restart":
        world.set(name, restarts=1)
    elif changed == "gone":
        world.set(name, ready=False, ready_since=None)
    elif changed == "role":
        world.set(name, role=Role.DECODE, role_epoch=3, role_since=START)
    elif changed == "admits":
        (only,) = world.spec.pools
        admits = PoolAdmits(max_prompt_tokens=2000)
        world.spec = msgspec.structs.replace(world.spec, pools=(msgspec.structs.replace(only, admits=admits),))
    else:
        world.spec = make_spec(*[pool(low=WORKERS, high=WORKERS)], mode="Auto", slo={"attainment": 0.9, "ttft": "9s"})
    assert roles_of(tell(world, answer)) == []


def test_the_order_of_the_classes_that_a_pool_admits_is_no_other_state() -> None:
    world = make_world()
    (only,) = world.spec.pools
    keys = []
    for classes in (("chat", "batch"), ("batch", "chat"), ("batch",)):
        pools = (msgspec.structs.replace(only, admits=PoolAdmits(classes=classes)),)
        world.spec = msgspec.structs.replace(world.spec, pools=pools)
        keys.append(wanted_of(world).key)
    assert keys[0] == keys[1] != keys[2]


def two_pools(*, mode: str = "Auto") -> World:
    """Pool a with four workers that prefill, pool b with four that decode."""
    world = make_world(mode=mode, pools=[pool("a", low=4, high=4), pool("b", low=4, high=4)])
    (speed,) = set(world.measurements.speeds.values())
    world.measurements = replace(world.measurements, speeds={"a": speed, "b": speed})
    assert wanted_of(world).standing == Layout.of(prefill={"a": 4}, decode={"b": 4})
    return world


SWAPPED = Layout.of(prefill={"b": 4}, decode={"a": 4})


def test_pools_that_change_places_are_named_where_the_ratio_stays() -> None:
    world = two_pools()
    decided = tell(world, answered(wanted_of(world), SWAPPED))
    assert roles_of(decided) != []
    stood, then = "4P:4D (a 4P:0D, b 0P:4D)", "4P:4D (a 0P:4D, b 4P:0D)"
    played = decided.status.rehearsal
    assert played is not None
    assert (played.stood, played.best, played.chosen) == (stood, then, then)
    decision = decided.status.last_decision
    assert decision is not None
    assert decision.from_ == stood
    assert decision.to.startswith("4P:4D (a ")


def test_observe_proposes_that_pools_change_places() -> None:
    world = two_pools(mode="Observe")
    decided = tell(world, answered(wanted_of(world), SWAPPED))
    decision = decided.status.last_decision
    assert decision is not None
    assert decision.action.startswith("Observed only: Auto would go from 4P:4D (a 4P:0D, b 0P:4D) to 4P:4D (a ")
    said = next(each for each in decided.status.conditions if each.type is ConditionType.PROGRESSING)
    assert "Auto would go to 4P:4D (a " in said.message
    world.status, world.now = decided.status, world.now + timedelta(seconds=10)
    assert world.plan().status.last_decision == decision, "the same proposal keeps its time"


def test_nothing_is_rehearsed_while_the_promise_is_kept_or_right_after_a_flip() -> None:
    assert make_world(attainment=WELL).plan().wanted is None
    assert make_world(attainment=None).plan().wanted is not None, "what is not known is not well"
    world = make_world()
    world.set(min(world.workers), role_since=world.now - timedelta(seconds=10))
    assert world.plan().wanted is None
    world.now += timedelta(seconds=30)
    assert world.plan().wanted is not None


def test_repairs_do_not_wait_for_rehearsals() -> None:
    world = make_world(prefill=1)
    world.set(min(world.workers), ready=False, ready_since=None)
    decided = world.plan()
    assert len(roles_of(decided)) == 1
    world = make_world()
    name = min(world.workers)
    del world.workers[name]
    assert [action.name for action in world.plan().actions if isinstance(action, CreateWorker)] == [name]


def test_pools_of_one_role_and_single_workers_have_nothing_to_rehearse() -> None:
    apart = [pool("a", low=4, high=4, roles=("prefill",)), pool("b", low=4, high=4, roles=("decode",))]
    world = make_world(pools=apart)
    assert world.plan().wanted is None


def test_observe_asks_too_and_says_what_auto_would_do() -> None:
    world = make_world(mode="Observe")
    decided = tell(world, answered(wanted_of(world), split(6)))
    assert roles_of(decided) == []
    assert decided.status.last_decision is not None
    assert decided.status.last_decision.action == "Observed only: Auto would go from 4P:4D to 6P:2D"


def test_without_rehearsals_flips_go_by_what_is_expected() -> None:
    world = make_world(prefill=7)
    world.measurements = replace(world.measurements, rehearses=False)
    decided = world.plan()
    assert decided.wanted is None
    assert roles_of(decided) != []
    assert decided.status.rehearsal is None


def test_while_plays_are_wrong_and_estimates_decide_roles_are_not_said_to_stay() -> None:
    world = make_world(prefill=7)
    world.measurements = replace(world.measurements, rehearses=False, plays_distrusted=True)
    decided = world.plan()
    assert roles_of(decided) != []
    said = next(each for each in decided.status.conditions if each.type is ConditionType.PROGRESSING)
    assert "What rehearsals foretold did not come" in said.message
    assert "roles change by estimates" in said.message
    assert "no worker is given back" in said.message
    assert "roles stay" not in said.message
    assert decided.status.rehearsal is None
    assert "status.rehearsal" not in said.message, "it is not there"


def test_while_plays_are_wrong_repairs_go_on_and_it_is_said() -> None:
    world = make_world(prefill=1)
    question = wanted_of(world)
    world.measurements = replace(world.measurements, plays_distrusted=True)
    held = replace(answered(question, split(6)), chosen=question.standing, checked=Checked(0.95, 0.6))
    decided = tell(world, held)
    assert roles_of(decided) == []
    assert decided.wanted is not None, "forecasts go on, or nobody would see that they are right again"
    assert decided.status.rehearsal is not None
    assert decided.status.rehearsal.foretold_attainment == 0.95
    assert decided.status.rehearsal.served_attainment == 0.6
    said = next(each for each in decided.status.conditions if each.type is ConditionType.PROGRESSING)
    assert said.reason is Reason.REHEARSAL_OFF
    assert "no further role is changed for the load" in said.message
    assert "status.rehearsal has both shares" in said.message
    world.set(min(world.workers), ready=False, ready_since=None)
    assert len(roles_of(world.plan())) == 1, "an empty role is taken over"
    name = max(world.workers)
    del world.workers[name]
    assert name in [action.name for action in world.plan().actions if isinstance(action, CreateWorker)]
