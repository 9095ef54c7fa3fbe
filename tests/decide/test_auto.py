"""Tables of modes Auto and Observe: what is done, why, and what the status says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.decide.loads import forecast, measurements, series, speed, traffic
from tests.decide.small_workers import SLOW_PROMPT_TOKENS, SLOW_SPEED
from tests.decide.world import World, idle_load, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionStatus, ConditionType, InferenceClusterStatus
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.peak import Busiest, peak_of
from fulcrum.decide.tuning import TUNING
from fulcrum.load.lengths import standard_error
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import CreateWorker, SetRole, StartDrain, TellRole

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
PROMPTS = (30.0, 3000.0, 50.0)
"""Rate, ISL, OSL of a load that four workers serve best as 3P:1D."""
ANSWERS = (12.0, 200.0, 1000.0)
"""And as 1P:3D."""


def auto(*pools: dict[str, Any], mode: str = "Auto", **others: Any) -> World:
    slo = others.pop("slo", {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95})
    return World(make_spec(*pools, mode=mode, slo=slo, **others))


def settled(world: World, known: Measurements, *, seconds: float = 600) -> World:
    world.measurements = known
    world.settle()
    world.pass_time(seconds)
    return world


def condition(result: BalancePlan, kind: ConditionType) -> Condition:
    return next(c for c in result.conditions if c.type is kind)


def writes(result: BalancePlan) -> list[Any]:
    return [action for action in result.actions if not isinstance(action, TellRole)]


@pytest.mark.parametrize(("known", "expected"), [(PROMPTS, {P: 3, D: 1}), (ANSWERS, {P: 1, D: 3})])
def test_a_fixed_budget_is_split_by_goodput(known: tuple[float, float, float], expected: dict[Role, int]) -> None:
    assert settled(auto(pool(low=4, high=4)), measurements(*known)).roles() == expected


def test_a_mix_that_moves_is_answered_by_flips_alone() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    world.measurements = measurements(*ANSWERS)
    result = world.plan()
    assert [(a.name, a.role, a.reason) for a in result.actions if isinstance(a, SetRole)] == [
        ("c-p-1", D, Reason.LOAD_SHIFTED),
        ("c-p-2", D, Reason.LOAD_SHIFTED),
    ]
    assert len(writes(result)) == 2
    decision = result.status.last_decision
    assert decision is not None
    assert (decision.from_, decision.to, decision.reason) == ("3P:1D", "1P:3D", Reason.LOAD_SHIFTED)
    assert (result.target, result.trace.reason) == ({P: 1, D: 3}, Reason.LOAD_SHIFTED)


def test_no_worker_flips_again_within_its_dwell() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    world.measurements = measurements(*ANSWERS)
    for action in world.plan().actions:
        world.do(action)
    flipped = {name for name, worker in world.workers.items() if worker.role_since == world.now}
    assert flipped == {"c-p-1", "c-p-2"}
    world.measurements = measurements(*PROMPTS)
    world.pass_time(29)
    assert {action.name for action in writes(world.plan())} == {"c-p-3"}
    world.pass_time(1)
    assert len(writes(world.plan())) == 2


def test_a_load_that_any_split_carries_flips_none() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    world.measurements = measurements(1.0, 300.0, 100.0)
    assert writes(world.plan()) == []


def test_what_the_forecast_says_is_there_before_the_load() -> None:
    world = settled(auto(pool(low=2, high=8)), measurements(10.0))
    before = sum(world.roles().values())
    world.measurements = replace(measurements(10.0), forecast=forecast(10.0, 60.0))
    created = [action for action in world.plan().actions if isinstance(action, CreateWorker)]
    assert len(created) > 0
    assert {action.reason for action in created} == {Reason.LOAD_FORECAST}
    assert before + len(created) <= 8


def test_workers_go_only_after_a_calm_and_only_as_many_as_the_peak_can_spare() -> None:
    world = settled(auto(pool(low=1, high=12)), measurements(60.0))
    most = sum(world.roles().values())
    for peak, kept in ((None, most), (60.0, most)):
        world.measurements = measurements(5.0, peak_rate=peak)
        assert [a for a in world.plan().actions if isinstance(a, StartDrain)] == []
        assert sum(world.plan().target.values()) == kept
    world.measurements = measurements(5.0, peak_rate=40.0)
    world.measurements = replace(world.measurements, plays_distrusted=True)
    assert writes(world.plan()) == [], "nothing is known of what fewer would serve"
    world.measurements = replace(world.measurements, plays_distrusted=False)
    drained = [action for action in world.plan().actions if isinstance(action, StartDrain)]
    assert 0 < len(drained) < most
    assert {action.reason for action in drained} == {Reason.LOAD_FELL}
    half = settled(auto(pool(low=1, high=12)), measurements(40.0))
    assert most - len(drained) == sum(half.roles().values())


def test_without_stabilization_workers_go_at_once() -> None:
    world = settled(auto(pool(low=1, high=12)), measurements(60.0))
    history = series([60.0, 60.0, 5.0], [2000.0] * 3, [200.0] * 3)
    for stabilization_seconds, goes in ((120.0, False), (0.0, True)):
        world.measurements = replace(measurements(5.0), peak=peak_of(history, stabilization_seconds))
        assert any(isinstance(action, StartDrain) for action in world.plan().actions) is goes


def test_who_was_needed_for_long_prompts_stays_as_long_as_for_many() -> None:
    """The rate is what it was; only the prompts of some minutes ago were longer."""
    world = settled(auto(pool(low=1, high=12)), measurements(40.0, 3000.0))
    most = sum(world.roles().values())
    calm = measurements(40.0, 500.0)
    assert calm.peak is not None
    world.measurements = replace(calm, peak=replace(calm.peak, prompts=Busiest(rate=40.0, tokens=3000.0)))
    assert sum(world.plan().target.values()) == most
    world.measurements = calm
    assert sum(world.plan().target.values()) < most


def test_a_worker_is_given_back_only_where_those_left_have_room() -> None:
    """Two loads for which a new cluster takes as many workers: from the larger one nobody goes down to them."""
    least = sum(settled(auto(pool(low=1, high=12)), measurements(20.0)).roles().values())
    edge = max(
        rate
        for rate in np.arange(20.0, 40.0, 0.25).tolist()
        if sum(settled(auto(pool(low=1, high=12)), measurements(rate)).roles().values()) == least
    )

    def left(rate: float) -> int:
        world = settled(auto(pool(low=least + 1, high=12)), measurements(rate))
        world.spec = auto(pool(low=1, high=12)).spec
        return sum(world.plan().target.values())

    assert left(edge) == least + 1
    assert left(edge * 0.9) == least


def longer_by_chance(rate: float, cv2: float) -> Measurements:
    """Prompts two standard errors above those of the last minutes, as one window in forty has them."""
    known = measurements(rate, window_seconds=30.0, isl_cv2=cv2)
    assert known.traffic is not None
    longer = 2000.0 * (1 + 2 * standard_error(cv2, rate * 30.0))
    return replace(known, traffic=replace(known.traffic, isl_tokens=longer))


@pytest.mark.parametrize("rate", [20.0, 24.0, 40.0, 58.0])
def test_prompts_that_are_longer_by_chance_start_no_worker(rate: float) -> None:
    world = settled(auto(pool(low=1, high=12)), measurements(rate, window_seconds=30.0, isl_cv2=2.0))
    steady = sum(world.roles().values())
    world.measurements = longer_by_chance(rate, 2.0)
    assert sum(world.plan().target.values()) == steady
    world.measurements = measurements(rate, 6000.0)
    assert sum(world.plan().target.values()) > steady


def test_prompts_that_are_longer_by_chance_widen_no_promise() -> None:
    hardly = {"ttft": "210ms", "tpot": "25ms", "attainment": 0.95}
    world = settled(auto(pool(low=4, high=4), slo=hardly), measurements(20.0, window_seconds=30.0))
    world.measurements = longer_by_chance(20.0, 1.0)
    assert not world.plan().trace.unreachable
    world.measurements = measurements(20.0, 3000.0)
    assert world.plan().trace.unreachable


def test_prompts_that_are_late_on_any_worker_take_few_more() -> None:
    """25 requests, hardly or not at all within reach of the promise: no number of workers makes up for their length."""
    workers = []
    for isl in range(4000, 12_001, 500):
        world = auto(pool(low=1, high=16))
        world.measurements = measurements(1.0, float(isl), 119.0, isl_cv2=1.2, window_seconds=25.0, peak_rate=None)
        world.settle()
        workers.append(sum(world.roles().values()))
    assert workers == sorted(workers)
    assert workers[0] == 1
    assert workers[-1] <= 3


@pytest.mark.parametrize("isl", [20_000.0, 50_000.0])
def test_prompts_to_come_that_nobody_serves_in_time_start_pods_all_the_same(isl: float) -> None:
    """Nearly all will be late on any worker; to wait without end is worse."""
    world = settled(auto(pool(low=1, high=16)), measurements(1.0))
    world.measurements = replace(measurements(1.0), forecast=forecast(10.0, isl=isl), peak=None)
    assert sum(world.plan().target.values()) > 10


def test_a_quicker_pool_grows_for_what_is_too_long_for_the_slow_one() -> None:
    world = auto(pool("a", low=2, high=2), pool("b", low=0, high=4))
    speeds = {"a": speed(prefill=0.1), "b": speed()}
    world.measurements = measurements(1.0, 4000.0, 100.0, speeds=speeds, peak_rate=None)
    world.settle()
    assert sum(1 for worker in world.workers.values() if worker.pool == "b") in (1, 2)


def test_without_a_forecast_only_what_is_sure_starts_pods() -> None:
    """As after a restart of the operator, which remembers nothing."""
    steady = measurements(24.0, window_seconds=10.0)
    world = settled(auto(pool(low=1, high=12)), steady)
    before = sum(world.roles().values())
    for isl, more in ((2600.0, False), (8000.0, True)):
        known = measurements(24.0, isl, window_seconds=10.0)
        world.measurements = replace(known, forecast=None, peak=None)
        created = [action for action in world.plan().actions if isinstance(action, CreateWorker)]
        assert bool(created) is more
        assert {action.reason for action in created} <= {Reason.LOAD_SHIFTED}
    assert before == sum(world.roles().values())


def test_nobody_is_given_back_right_after_some_were_asked_for() -> None:
    for stabilization, goes in (("300s", False), ("0s", True)):
        world = auto(pool(low=1, high=12), balance={"mode": "Auto", "scaleDown": {"stabilization": stabilization}})
        settled(world, measurements(60.0), seconds=0)
        world.measurements = measurements(5.0)
        assert any(isinstance(action, StartDrain) for action in world.plan().actions) is goes
        world.pass_time(300)
        assert any(isinstance(action, StartDrain) for action in world.plan().actions)


def test_mixed_workers_stay_what_they_are_as_they_become_fewer() -> None:
    world = settled(auto(pool(low=12, high=16, roles=("mixed",))), measurements(50.0))
    assert world.roles() == {M: 12}
    world.spec = auto(pool(low=1, high=16, roles=("mixed",))).spec
    world.settle()
    fewer = world.roles()[M]
    assert 4 < fewer < 12
    assert world.roles() == {M: fewer}
    world.spec = auto(pool(low=1, high=16)).spec
    world.settle()
    assert world.roles() == {M: fewer}


def test_over_capacity_says_what_to_do() -> None:
    world = settled(auto(pool(low=2, high=4)), measurements(20.0))
    world.measurements = measurements(200.0)
    result = world.plan()
    degraded = condition(result, ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.OVER_CAPACITY)
    assert "workers.max" in degraded.message
    assert [event.reason for event in result.events] == [Reason.OVER_CAPACITY]
    assert sum(result.target.values()) == 4
    world.measurements = measurements(20.0)
    assert condition(world.plan(), ConditionType.DEGRADED).status is ConditionStatus.FALSE


def test_over_capacity_does_not_flicker_at_the_edge() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(20.0))
    said = []
    for rate in (20.0, 25.0, 28.0, 31.0, 34.0, 40.0, 34.0, 31.0, 28.0, 25.0, 22.0, 20.0):
        world.measurements = measurements(rate)
        said.append(condition(world.plan(), ConditionType.DEGRADED).status is ConditionStatus.TRUE)
    changes = sum(1 for before, after in pairwise(said) if before is not after)
    assert said[5]
    assert not said[-1]
    assert changes == 2


def test_what_waits_in_engines_stays_where_it_is_and_flips_none() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(15.0, 2000.0, 200.0))
    assert world.roles() == {P: 2, D: 2}
    for role in (P, D):
        for name, worker in world.workers.items():
            waits = 400 if worker.role is role else 0
            load = idle_load(worker, running=5)
            world.set(name, load=msgspec.structs.replace(load, waiting=waits, queued_prompt_tokens=2_000 * waits))
        assert [action for action in world.plan().actions if isinstance(action, SetRole)] == []


def test_a_handful_of_requests_that_take_longer_than_the_promise_are_served_by_more_workers() -> None:
    """Twelve a minute of 13 s each, promised within 3 s: surely more than one worker carries."""
    slo = {"ttft": "3s", "tpot": "300ms", "attainment": 0.95}
    world = auto(pool(low=4, high=4), slo=slo, ratio=(1, 3), admission={"policy": "Off"})
    settled(world, Measurements(speeds={"p": SLOW_SPEED}, traffic=traffic(0.0, None, None)))
    assert world.roles() == {P: 1, D: 3}
    known = traffic(0.2, SLOW_PROMPT_TOKENS, 2.0, window_seconds=60.0, isl_cv2=0.0, osl_cv2=0.0)
    world.measurements = replace(world.measurements, traffic=known)
    flips = [action for action in world.plan().actions if isinstance(action, SetRole)]
    assert {(action.role, action.reason) for action in flips} == {(P, Reason.LOAD_SHIFTED)}


def test_a_role_that_nobody_serves_is_taken_over_at_once() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    world.crash("c-p-3")
    (flip,) = writes(world.plan())
    assert (flip.role, flip.reason) == (D, Reason.ROLE_EMPTY)
    world.measurements = Measurements(unknown="away")
    (flip,) = writes(world.plan())
    assert (flip.role, flip.reason) == (D, Reason.ROLE_EMPTY)


def test_an_empty_role_waits_for_no_drain() -> None:
    world = settled(auto(pool(low=3, high=3), style="Drain"), measurements(20.0, 3000.0, 50.0))
    assert world.roles() == {P: 2, D: 1}
    del world.workers["c-p-2"]
    flips = [action for action in writes(world.plan()) if isinstance(action, SetRole)]
    assert [(action.role, action.reason) for action in flips] == [(M, Reason.ROLE_EMPTY)]


def test_an_only_worker_takes_both_roles_and_gives_one_back() -> None:
    world = settled(auto(pool(low=2, high=2)), measurements(2.0))
    assert world.roles() == {P: 1, D: 1}
    world.crash("c-p-1")
    (flip,) = writes(world.plan())
    assert (flip.name, flip.role) == ("c-p-0", M)
    world.do(flip)
    world.start("c-p-1")
    assert writes(world.plan()) == []  # dwell
    world.pass_time(30)
    (flip,) = writes(world.plan())
    assert (flip.name, flip.role) == ("c-p-0", P)


def test_a_cluster_that_starts_is_not_broken() -> None:
    world = auto(pool(low=2, high=2))
    world.measurements = measurements(1.0)
    for action in world.plan().actions:
        world.do(action)
    world.start("c-p-0")
    world.pass_time(2)
    assert writes(world.plan()) == []


def test_workers_that_may_not_do_both_never_do() -> None:
    divided = ("prefill", "decode")
    world = settled(auto(pool(low=2, high=2, roles=divided)), measurements(28.0, 300.0, 300.0), seconds=0)
    for _ in range(20):
        for action in world.plan().actions:
            world.do(action)
        world.pass_time(10)
    assert world.roles() == {P: 1, D: 1}
    # A new cluster is as small as it can be without one.
    fresh = auto(pool(low=0, high=4, roles=divided))
    assert sorted(action.role for action in fresh.plan().actions if isinstance(action, CreateWorker)) == [D, P]


def test_each_pool_does_what_its_hardware_is_best_at() -> None:
    speeds = {"a": speed(prefill=3.0), "b": speed(prefill=0.5)}
    world = auto(pool("a", low=2, high=2), pool("b", low=2, high=2))
    settled(world, measurements(20.0, 2000.0, 250.0, speeds=speeds))
    assert {(w.pool, w.role) for w in world.workers.values() if w.role is P} <= {("a", P)}
    assert {(w.pool, w.role) for w in world.workers.values() if w.pool == "b"} == {("b", D)}


def test_a_dear_pool_is_left_alone_while_a_cheap_one_does() -> None:
    dear = {**pool("a", high=8), "parallelism": {"tensor": 4}}
    world = settled(auto(dear, pool("b", high=8)), measurements(20.0, pools=("a", "b")))
    assert {worker.pool for worker in world.workers.values()} == {"b"}


def test_a_pool_of_unknown_speed_that_has_no_workers_is_left_out() -> None:
    world = settled(auto(pool("a", high=8), pool("b", high=8)), measurements(20.0, pools=("a",)))
    assert {worker.pool for worker in world.workers.values()} == {"a"}
    assert condition(world.plan(), ConditionType.PROGRESSING).reason is Reason.RECONCILED


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (Measurements(speeds={"p": speed()}, unknown="prometheus is away"), "prometheus is away"),
        (replace(measurements(5.0), speeds={}), "how fast the workers of pool p are"),
        (Measurements(traffic=traffic(5.0, None, None), speeds={"p": speed()}), "their lengths were not measured"),
    ],
)
def test_what_is_unknown_is_said(known: Measurements, said: str) -> None:
    world = settled(auto(pool(low=2, high=4)), measurements(5.0))
    before = world.roles()
    world.measurements = known
    result = world.plan()
    assert writes(result) == []
    progressing = condition(result, ConditionType.PROGRESSING)
    assert progressing.reason is Reason.METRICS_UNKNOWN
    assert said in progressing.message
    assert result.trace.unknown is not None
    assert world.roles() == before == dict(result.target)


def test_a_promise_that_no_worker_keeps_is_planned_for_as_near_as_can_be() -> None:
    world = auto(pool(low=4, high=4), slo={"ttft": "20ms", "tpot": "2ms", "attainment": 0.95})
    settled(world, measurements(*ANSWERS))
    assert sum(world.roles().values()) == 4
    assert "Even an idle worker is slower" in condition(world.plan(), ConditionType.PROGRESSING).message


@pytest.mark.parametrize("attainment", [1e-6, 1.0])
def test_a_promise_to_nearly_none_or_to_all_is_planned_for(attainment: float) -> None:
    slo = {"ttft": "500ms", "tpot": "25ms", "attainment": attainment}
    world = settled(auto(pool(low=1, high=12), slo=slo), measurements(40.0))
    assert world.plan().trace.failure is None
    assert 1 < sum(world.roles().values()) <= 12


def test_a_quiet_turn_is_looked_at_again_in_seconds_and_says_the_same() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    first = world.plan()
    world.pass_time(2)
    second = world.plan()
    assert first.requeue_after_seconds == TUNING.tick_seconds
    assert second.status == first.status
    world.measurements = measurements(30.3, 3010.0, 50.0)
    assert world.plan().status == first.status  # noise is no news


def test_a_cluster_is_calm_where_nothing_moves_and_few_are_late() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    served = world.measurements
    assert served.traffic is not None

    def with_traffic(**changes: Any) -> Measurements:
        return replace(served, traffic=replace(served.traffic, **changes))

    assert not world.plan().calm, "how many were late is not known"
    world.measurements = with_traffic(attainment=0.99, rejected=0.0)
    assert world.plan().calm
    world.measurements = with_traffic(rate=0.0, isl_tokens=None, osl_tokens=None, attainment=None)
    assert world.plan().calm, "nobody asks"
    world.measurements = with_traffic(attainment=0.95, rejected=0.0)
    assert not world.plan().calm, "many are late"
    assert not world.plan().held
    world.measurements = Measurements(unknown="nobody answers")
    assert world.plan().calm, "nothing can be decided"
    assert world.plan().held
    world.measurements = with_traffic(attainment=0.99, rejected=0.0)
    assert not plan(world.snapshot(paused=True), world.now).calm, "it has a pace of its own"
    name = next(name for name, worker in world.workers.items() if worker.role is Role.DECODE)
    world.set(name, role=Role.DRAINING, draining_from=Role.DECODE)
    assert not world.plan().calm, "the end of a drain is waited for"
    world.set(name, role=Role.DECODE, draining_from=None)
    assert world.plan().calm
    world.crash(name)
    assert not world.plan().calm, "a worker is gone"


ONLY_P, ONLY_D, ONLY_M = ("prefill",), ("decode",), ("mixed",)


class TestTheRatioToBeginWith:
    """`spec.balance.ratio` says the roles while nothing is known of the load, and nothing was decided."""

    @pytest.mark.parametrize(
        ("pools", "ratio", "expected"),
        [
            ([pool(low=8, high=8)], (7, 1), {P: 7, D: 1}),
            ([pool(low=8, high=8)], None, {P: 4, D: 4}),
            # As many workers as without it: in the same proportion, at least one of each.
            ([pool(low=4, high=8)], (2, 6), {P: 1, D: 3}),
            ([pool(low=4, high=8)], (7, 1), {P: 3, D: 1}),
            ([pool(low=6, high=8)], (2, 1), {P: 4, D: 2}),
            ([pool(low=2, high=8)], (7, 1), {P: 1, D: 1}),
            ([pool(low=1, high=8)], (7, 1), {M: 1}),
            ([pool(low=0, high=8)], (1, 7), {M: 1}),
            ([pool(low=0, high=8, roles=("prefill", "decode"))], (1, 7), {P: 1, D: 1}),
            # Pools with one role keep it.
            ([pool("a", low=3), pool("b", low=2, roles=ONLY_D)], (3, 2), {P: 3, D: 2}),
            ([pool("a", low=3), pool("b", low=2, roles=ONLY_D)], (1, 4), {P: 1, D: 4}),
            ([pool("a", low=3), pool("b", low=2, roles=ONLY_D)], (4, 1), {P: 3, D: 2}),
            ([pool("a", low=2, roles=ONLY_P), pool("b", low=2, roles=ONLY_D)], (3, 1), {P: 2, D: 2}),
            ([pool("a", low=2), pool("b", low=3)], (1, 4), {P: 1, D: 4}),
            ([pool("a", low=2, roles=ONLY_M), pool("b", low=4)], (3, 1), {M: 2, P: 3, D: 1}),
        ],
    )
    def test_a_new_cluster_has_it(
        self, pools: list[dict[str, Any]], ratio: tuple[int, int] | None, expected: dict[Role, int]
    ) -> None:
        world = auto(*pools, ratio=ratio)
        result = world.plan()
        created = [action.role for action in result.actions if isinstance(action, CreateWorker)]
        assert {role: created.count(role) for role in created} == dict(result.target) == expected
        world.settle()
        assert world.roles() == expected

    @pytest.mark.parametrize(
        ("known", "ratio", "expected"),
        [
            ({"p": speed()}, None, {P: 4, D: 4}),
            ({"p": speed(decode=4.0)}, None, {P: 6, D: 2}),
            ({"p": speed(decode=4.0)}, (1, 1), {P: 4, D: 4}),
            ({"other": speed()}, None, {P: 4, D: 4}),
        ],
    )
    def test_without_it_workers_of_known_speed_begin_with_usual_traffic_in_mind(
        self, known: dict[str, WorkerSpeed], ratio: tuple[int, int] | None, expected: dict[Role, int]
    ) -> None:
        world = auto(pool(low=8, high=8), ratio=ratio)
        world.measurements = Measurements(speeds=known, unknown="too early")
        assert dict(world.plan().target) == expected
        world.settle()
        assert world.roles() == expected

    def test_it_is_held_until_the_load_is_known_and_never_gone_back_to(self) -> None:
        world = settled(
            auto(pool(low=4, high=4), ratio=(1, 3)), Measurements(speeds={"p": speed()}, unknown="too early")
        )
        assert world.roles() == {P: 1, D: 3}
        settled(world, measurements(*PROMPTS))
        assert world.roles() == {P: 3, D: 1}
        for known in (Measurements(unknown="away"), measurements(0.0), measurements(1.0, 300.0, 100.0)):
            world.measurements = known
            assert writes(world.plan()) == []
            world.pass_time(60)

    @pytest.mark.parametrize(
        "known", [Measurements(unknown="too early"), measurements(0.0), measurements(1.0, 300.0, 100.0)]
    )
    def test_to_change_it_later_changes_nothing(self, known: Measurements) -> None:
        world = settled(auto(pool(low=4, high=4), ratio=(3, 1)), known)
        world.spec = auto(pool(low=4, high=4), ratio=(1, 3)).spec
        assert writes(world.plan()) == []

    @pytest.mark.parametrize("known", [Measurements(unknown="too early"), measurements(0.0)])
    @pytest.mark.parametrize("died", ["c-p-0", "c-p-3"])
    def test_who_dies_before_the_first_request_is_replaced_as_it_was(self, known: Measurements, died: str) -> None:
        world = settled(auto(pool(low=4, high=4), ratio=(3, 1)), known)
        del world.workers[died]
        world.settle()
        assert world.roles() == {P: 3, D: 1}

    def test_a_status_that_was_never_written_changes_nothing(self) -> None:
        """The operator died between the first Pods and the first status."""
        world = auto(pool(low=4, high=4), ratio=(3, 1))
        for action in world.plan().actions[:2]:
            world.do(action)
        world.status = InferenceClusterStatus()
        world.settle()
        assert world.roles() == {P: 3, D: 1}


class TestObserve:
    """Everything is computed and published, and nothing is done."""

    def test_a_new_cluster_starts_as_in_manual(self) -> None:
        world = auto(pool(high=4), mode="Observe", ratio=(1, 3))
        created = [action.role for action in world.plan().actions if isinstance(action, CreateWorker)]
        assert created == [P, D, D, D]

    def test_it_says_what_auto_would_do(self) -> None:
        world = settled(auto(pool(low=4, high=4), mode="Observe"), measurements(*PROMPTS))
        assert world.roles() == {P: 2, D: 2}
        result = world.plan()
        assert writes(result) == []
        assert result.target == {P: 3, D: 1}
        assert result.observed_only
        decision = result.status.last_decision
        assert decision is not None
        assert decision.action == "Observed only: Auto would go from 2P:2D to 3P:1D"
        progressing = condition(result, ConditionType.PROGRESSING)
        assert progressing.reason is Reason.OBSERVING
        assert "Auto would go to 3P:1D" in progressing.message
        world.pass_time(100)
        assert world.plan().status == result.status

    def test_it_replaces_what_dies_and_changes_no_count(self) -> None:
        world = settled(auto(pool(low=1, high=8), mode="Observe"), measurements(1.0))
        assert world.roles() == {P: 4, D: 4}
        del world.workers["c-p-2"]
        assert [(a.name, a.role) for a in writes(world.plan())] == [("c-p-2", P)]
        world.settle()
        world.measurements = measurements(500.0)
        assert writes(world.plan()) == []

    def test_the_way_from_auto_freezes_what_stands(self) -> None:
        world = settled(auto(pool(low=1, high=8)), measurements(20.0))
        before = world.roles()
        world.spec = auto(pool(low=1, high=8), mode="Observe").spec
        world.measurements = measurements(80.0)
        assert writes(world.plan()) == []
        assert world.roles() == before


def test_paused_does_nothing() -> None:
    world = settled(auto(pool(low=4, high=4)), measurements(*PROMPTS))
    world.measurements = measurements(*ANSWERS)
    assert plan(world.snapshot(paused=True), world.now).actions == ()
