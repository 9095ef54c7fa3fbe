"""What another planner (NVIDIA Dynamo) publishes as its tests, and what its users report, as cases for ours."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from tests.decide.loads import measurements, peak, speed
from tests.decide.world import World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.measurements import Measurements
from fulcrum.load.traffic import Traffic
from fulcrum.rollout import CreateWorker, DeleteWorker, SetRole, StartDrain, TellRole

P, D = Role.PREFILL, Role.DECODE
STEP_SECONDS = 0.020


def dynamo_speed(*, prefill_tokens: float, decode_tokens: float) -> WorkerSpeed:
    """A worker of so many tokens per second: prefill in proportion, decode in a batch with steps of 20 ms."""
    return WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=0.0,
            prefill_b=1 / prefill_tokens,
            prefill_c=0.0,
            decode_a=STEP_SECONDS,
            decode_b=0.0,
            decode_c=0.0,
        ),
        kv_capacity_tokens=10_000_000,
        max_batch=int(decode_tokens * STEP_SECONDS),
        max_batched_tokens=100_000,
    )


@pytest.mark.parametrize(
    ("requests", "decode_tokens", "expected"),
    [
        (10, 10_000, {P: 1, D: 1}),
        (500, 1_000, {P: 1, D: 2}),
    ],
)
def test_published_sizes(requests: int, decode_tokens: int, expected: dict[Role, int]) -> None:
    roles = (pool("a", high=8, roles=("prefill",)), pool("b", high=8, roles=("decode",)))
    world = World(make_spec(*roles, mode="Auto", slo={"ttft": "2s", "tpot": "30ms", "attainment": 0.95}))
    each = dynamo_speed(prefill_tokens=40_000, decode_tokens=decode_tokens)
    known = measurements(requests / 60, 3000, 150, speeds={"a": each, "b": each}, isl_cv2=0.0, osl_cv2=0.0)
    world.measurements = known
    world.settle()
    assert world.roles() == expected


def auto(*pools: dict[str, object], **others: object) -> World:
    slo = {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
    return World(make_spec(*pools, mode="Auto", slo=slo, **others))  # type: ignore[arg-type]


def test_a_half_applied_rebalance_never_exceeds_the_budget() -> None:
    """Dynamo #12428, #12012: the new role was scaled up before the old one was gone."""
    world = auto(pool(low=4, high=4), style="Drain")
    world.measurements = measurements(30, 3000, 50)
    world.settle()
    world.measurements = measurements(12, 200, 1000)
    world.set("c-p-3", deleting=True)  # and one is on its way out already, still with its GPUs
    for _ in range(30):
        actions = list(world.plan().actions)
        assert not [action for action in actions if isinstance(action, CreateWorker)]
        for action in actions[:1]:  # only one of them gets through each time
            world.do(action)
            assert len(world.workers) <= 4
        for name in list(world.workers):
            world.report_idle(name)
        world.pass_time(3)
    world.vanish("c-p-3")
    assert [a.name for a in world.plan().actions if isinstance(a, CreateWorker)] == ["c-p-3"]


def test_scaling_down_aborts_no_request() -> None:
    """Dynamo #13559: Pods were deleted with requests in flight."""
    world = auto(pool(low=2, high=8))
    world.measurements = measurements(60)
    world.settle()
    world.pass_time(600)
    world.measurements = measurements(5)
    actions = world.plan().actions
    assert {type(action) for action in actions} == {StartDrain}
    assert {action.reason for action in actions} == {Reason.LOAD_FELL}
    for action in actions:
        world.do(action)
    world.pass_time(30)
    assert not [action for action in world.plan().actions if isinstance(action, DeleteWorker)]  # load unknown
    for action in actions:
        world.report_idle(action.name)
    assert {action.name for action in world.plan().actions if isinstance(action, DeleteWorker)} == {
        action.name for action in actions
    }


def test_an_unschedulable_worker_freezes_nobody_else() -> None:
    """Dynamo #14251: one Pod without a node stopped the other role from scaling."""
    world = auto(pool("a", high=6, roles=("prefill",)), pool("b", high=6, roles=("decode",)))
    world.measurements = measurements(5, pools=("a", "b"))
    world.settle()
    world.measurements = measurements(60, pools=("a", "b"))
    for action in world.plan().actions:
        world.do(action)
    for name, worker in list(world.workers.items()):
        if not worker.ready and worker.pool == "a":
            world.set(name, unschedulable="0/9 nodes are available")
        else:
            world.start(name)
    prefill = {name for name, worker in world.workers.items() if worker.pool == "a"}
    decode = sum(1 for worker in world.workers.values() if worker.pool == "b")
    world.measurements = measurements(60, 2000, 600, pools=("a", "b"))  # now decode needs more
    created = [action for action in world.plan().actions if isinstance(action, CreateWorker)]
    assert created
    assert all(action.role is D for action in created)  # and no more Pods that would only wait, too
    assert {name for name, worker in world.workers.items() if worker.pool == "a"} == prefill
    assert decode + len(created) <= 6


def test_another_pool_takes_over_from_one_without_nodes() -> None:
    world = auto(pool("a", high=6), pool("b", low=0, high=12))
    world.measurements = measurements(5, pools=("a", "b"))
    world.settle()
    world.measurements = measurements(60, pools=("a", "b"))
    for action in world.plan().actions:
        world.do(action)
    missing = [name for name, worker in world.workers.items() if not worker.ready and worker.pool == "a"]
    assert missing
    for name in missing:
        world.set(name, unschedulable="0/9 nodes are available")
    for name in [name for name in world.workers if name not in missing]:
        world.start(name)
    assert not [action for action in world.plan().actions if isinstance(action, CreateWorker)]  # a node may still come
    world.pass_time(121)  # but it takes longer than usual
    created = [action for action in world.plan().actions if isinstance(action, CreateWorker)]
    assert len(created) >= len(missing)
    assert {action.pool for action in created} == {"b"}


def test_no_forecast_asks_for_less_than_nothing() -> None:
    """Dynamo #14493: ARIMA returned negative rates."""
    world = auto(pool(low=0, high=8))
    known = measurements(0.0)
    assert known.forecast is not None
    world.measurements = replace(
        known, forecast=replace(known.forecast, rate=(-3.0, -8.0), upper_rate=(-1.0, -6.0)), peak=peak(-2.0)
    )
    world.settle()
    assert world.roles() == {Role.MIXED: 1}


def test_an_outage_of_the_metrics_holds_everything() -> None:
    """Dynamo #14575: no samples were read as no load, and everything was scaled to zero."""
    world = auto(pool(low=0, high=8))
    world.measurements = measurements(60)
    world.settle()
    before = world.roles()
    world.measurements = Measurements(speeds={"p": speed()}, unknown="http://prometheus:9090 refuses connections")
    for _ in range(100):
        result = world.plan()
        assert not [action for action in result.actions if not isinstance(action, TellRole)]
        world.pass_time(60)
    assert world.roles() == before
    assert any("refuses connections" in condition.message for condition in result.conditions)


def test_load_at_the_edge_of_a_size_moves_no_pods_to_and_fro() -> None:
    """Dynamo #9294: 2 <-> 1 replicas, again and again."""
    world = auto(pool("a", high=4, roles=("prefill",)), pool("b", high=4, roles=("decode",)))
    random = Random(3)
    edge = edge_rate()
    rates: list[tuple[float, float]] = []
    changes: list[str] = []
    for tick in range(720):  # two hours
        clock = tick * 10.0
        rates.append((clock, edge * random.uniform(0.85, 1.15)))
        recent = [rate for moment, rate in rates if moment > clock - 300]
        known = measurements(rates[-1][1], pools=("a", "b"), peak_rate=max(recent) if clock >= 300 else None)
        mean = sum(recent[-6:]) / len(recent[-6:])
        assert known.forecast is not None
        upper = (mean * 1.1,) * 5
        world.measurements = replace(known, forecast=replace(known.forecast, rate=(mean,) * 5, upper_rate=upper))
        for action in world.plan().actions:
            world.do(action)
            if not isinstance(action, TellRole) and clock > 600:
                changes.append(f"{clock} {action}")
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            world.report_idle(name)
        world.pass_time(10)
    assert len(changes) <= 4, changes


def edge_rate() -> float:
    """Return the rate at which one prefill worker is just no longer enough."""
    low, high = 1.0, 40.0
    while high - low > 0.1:
        world = auto(pool("a", high=4, roles=("prefill",)), pool("b", high=4, roles=("decode",)))
        world.measurements = measurements((low + high) / 2, pools=("a", "b"))
        created = [a for a in world.plan().actions if isinstance(a, CreateWorker) and a.role is P]
        low, high = ((low + high) / 2, high) if len(created) < 2 else (low, (low + high) / 2)
    return high


def test_swapping_roles_makes_and_deletes_no_pod() -> None:
    """Dynamo has no flip: a swap deletes a Pod and makes another."""
    world = auto(pool(low=4, high=4))
    world.measurements = measurements(30, 3000, 50)
    world.settle()
    world.measurements = measurements(12, 200, 1000)
    world.pass_time(60)
    actions = [action for action in world.plan().actions if not isinstance(action, TellRole)]
    assert actions
    assert {type(action) for action in actions} == {SetRole}


def test_a_burst_of_the_window_alone_adds_no_pods() -> None:
    """What a short window sees may be chance: Pods take minutes, so they follow what is sure or forecast."""
    world = auto(pool(low=2, high=8))
    world.measurements = measurements(10)
    world.settle()
    before = world.roles()
    known = measurements(10)
    burst = Traffic(window_seconds=3.0, rate=16.0, isl_tokens=2000.0, osl_tokens=200.0)
    world.measurements = replace(known, traffic=burst)
    world.pass_time(float(timedelta(minutes=2).total_seconds()))
    for _ in range(5):
        for action in world.plan().actions:
            world.do(action)
    assert sum(world.roles().values()) == sum(before.values())
