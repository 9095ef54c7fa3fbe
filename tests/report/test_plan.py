"""Tables of the plan: what is done next, why, and what the status says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.decide.world import START, World, idle_load, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionType, InferenceClusterSpec
from fulcrum.api.worker import Stage
from fulcrum.decide import GatewayState, Termination, WorkerPhase
from fulcrum.decide.tuning import TUNING
from fulcrum.report import BalancePlan, plan, stopped_status
from fulcrum.rollout import CreateWorker, DeleteWorker, SetRole, StartDrain, TellRole

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED


def settled(spec: InferenceClusterSpec) -> World:
    world = World(spec)
    world.settle()
    return world


def condition(result: BalancePlan, kind: ConditionType) -> Condition:
    return next(c for c in result.conditions if c.type is kind)


def kinds(result: BalancePlan) -> list[str]:
    return [type(action).__name__ for action in result.actions]


def play(world: World, *, rounds: int = 60) -> list[str]:
    """Carry out plans in a healthy world; returns what was done, in order."""
    done: list[str] = []
    for _ in range(rounds):
        actions = [a for a in world.plan().actions if not isinstance(a, TellRole)]
        for action in actions:
            world.do(action)
            what = {CreateWorker: "create", DeleteWorker: "delete", StartDrain: "drain"}.get(type(action))
            done.append(f"{what or action.role.value} {action.name}")  # type: ignore[union-attr]
        for name in list(world.workers):
            world.vanish(name)
            world.start(name)
            world.report_idle(name)
        world.pass_time(3)
    return done


def test_a_new_cluster_gets_its_workers_with_lowest_ordinals_and_prefill_first() -> None:
    result = World(make_spec(pool(high=3))).plan()
    assert [(a.name, a.role) for a in result.actions if isinstance(a, CreateWorker)] == [
        ("c-p-0", P),
        ("c-p-1", P),
        ("c-p-2", D),
    ]
    assert result.status.ready == "0/3"
    assert result.status.last_decision is not None
    assert (result.status.last_decision.from_, result.status.last_decision.to) == ("0P:0D", "2P:1D")


def test_a_new_ratio_flips_the_last_worker_of_the_role_that_has_too_many() -> None:
    world = settled(make_spec(pool(), ratio=(2, 2)))
    world.spec = make_spec(pool(), ratio=(1, 3))
    result = world.plan()
    assert result.actions == (SetRole(name="c-p-1", uid=world.workers["c-p-1"].uid, from_role=P, role=D, epoch=1),)
    assert condition(result, ConditionType.PROGRESSING).reason is Reason.ROLE_FLIPPED
    assert result.status.last_decision is not None
    assert result.status.last_decision.action == "Flip c-p-1"


def test_a_worker_that_is_not_ready_flips_before_one_that_serves() -> None:
    world = settled(make_spec(pool(), ratio=(2, 2)))
    world.crash("c-p-0")
    world.spec = make_spec(pool(), ratio=(1, 3))
    assert [a.name for a in world.plan().actions] == ["c-p-0"]


def test_the_drain_style_waits_for_idle_and_then_gives_the_role() -> None:
    world = settled(make_spec(pool(), ratio=(2, 2), style="Drain"))
    world.spec = make_spec(pool(), ratio=(1, 3), style="Drain")
    assert kinds(world.plan()) == ["StartDrain"]
    world.do(world.plan().actions[0])
    world.pass_time(10)
    assert kinds(world.plan()) == []  # load unknown
    world.set("c-p-1", load=idle_load(world.workers["c-p-1"], running=1))
    assert kinds(world.plan()) == []  # load known, and not idle
    world.report_idle("c-p-1")
    (flip,) = world.plan().actions
    assert isinstance(flip, SetRole)
    assert (flip.role, flip.epoch, flip.reason) == (D, 2, Reason.ROLE_FLIPPED)
    world.set("c-p-1", load=None)
    world.pass_time(60)
    assert [(type(a), a.reason) for a in world.plan().actions] == [(SetRole, Reason.DRAIN_TIMED_OUT)]


def test_a_drain_ends_when_its_engine_was_restarted() -> None:
    """It died, or stood still and its agent restarted it: the requests that the drain waited for are gone."""
    world = settled(make_spec(pool(), ratio=(2, 2), style="Drain"))
    world.spec = make_spec(pool(), ratio=(1, 3), style="Drain")
    world.do(world.plan().actions[0])
    world.pass_time(10)
    report = msgspec.structs.replace(idle_load(world.workers["c-p-1"]), running=None, waiting=None)
    for stage in (None, Stage.READY):
        world.set("c-p-1", ready=False, load=msgspec.structs.replace(report, stage=stage))
        assert kinds(world.plan()) == [], "its engine can still have requests"
    world.set("c-p-1", load=msgspec.structs.replace(report, stage=Stage.IMPORTS))
    assert [(type(a), a.reason) for a in world.plan().actions] == [(SetRole, Reason.ROLE_FLIPPED)]


def test_a_swap_of_one_and_one_never_empties_a_role() -> None:
    world = settled(make_spec(pool("a", high=1, roles=("prefill",)), pool("b", high=1, roles=("decode",))))
    world.spec = make_spec(pool("a", high=1, roles=("decode",)), pool("b", high=1, roles=("prefill",)))
    assert play(world) == ["mixed c-a-0", "prefill c-b-0", "decode c-a-0"]


def test_one_worker_becomes_two_and_back_without_a_gap() -> None:
    world = settled(make_spec(pool(high=1)))
    assert world.roles() == {M: 1}
    world.spec = make_spec(pool(high=2))
    assert play(world) == ["create c-p-1", "prefill c-p-0"]
    world.spec = make_spec(pool(high=1))
    assert play(world) == ["mixed c-p-0", "drain c-p-1", "delete c-p-1"]


def test_fewer_workers_drains_the_highest_ordinals_of_each_role_and_flips_none() -> None:
    world = settled(make_spec(pool(high=4)))
    world.spec = make_spec(pool(high=2))
    assert play(world) == ["drain c-p-3", "drain c-p-1", "delete c-p-3", "delete c-p-1"]


def test_a_worker_that_is_not_ready_is_removed_first_and_at_once() -> None:
    world = settled(make_spec(pool(high=4)))
    world.crash("c-p-2")
    world.spec = make_spec(pool(high=3))
    assert [(type(a), a.name, a.reason) for a in world.plan().actions] == [
        (DeleteWorker, "c-p-2", Reason.WORKER_REMOVED)
    ]


def test_a_worker_on_its_way_out_keeps_its_place_in_the_budget() -> None:
    world = settled(make_spec(pool(high=3)))
    world.set("c-p-2", deleting=True)
    world.set("c-p-0", deleting=True)
    assert "CreateWorker" not in kinds(world.plan())
    world.vanish("c-p-0")
    assert [a.name for a in world.plan().actions if isinstance(a, CreateWorker)] == ["c-p-0"]


def eviction(world: World, name: str) -> list[SetRole]:
    """The flips that follow from an eviction, carried out."""
    world.set(name, deleting=True)
    flips = [action for action in world.plan().actions if isinstance(action, SetRole)]
    for action in flips:
        world.do(action)
    assert condition(world.plan(), ConditionType.AVAILABLE).reason is Reason.READY
    return flips


@pytest.mark.parametrize("style", ["Immediate", "Drain"])
def test_an_eviction_of_the_only_worker_of_a_role_lets_the_last_other_one_do_both(style: str) -> None:
    world = settled(make_spec(pool(high=2), style=style))
    (flip,) = eviction(world, "c-p-0")
    assert (flip.name, flip.role, flip.reason) == ("c-p-1", M, Reason.ROLE_EMPTY)
    for _ in range(3):  # nothing more is done until its replacement serves
        assert [a for a in world.plan().actions if not isinstance(a, TellRole)] == []
    world.vanish("c-p-0")
    assert play(world) == ["create c-p-0", "decode c-p-1"]
    assert world.roles() == {P: 1, D: 1}


def test_an_eviction_of_the_only_worker_of_a_role_flips_one_of_several_others_for_good() -> None:
    world = settled(make_spec(pool(high=4), ratio=(1, 3)))
    (flip,) = eviction(world, "c-p-0")
    assert (flip.name, flip.role, flip.reason) == ("c-p-3", P, Reason.ROLE_EMPTY)
    world.vanish("c-p-0")
    assert play(world) == ["create c-p-0"]
    assert world.workers["c-p-0"].role is D
    assert world.roles() == {P: 1, D: 3}


def test_a_role_that_is_served_by_others_is_not_taken_over() -> None:
    world = settled(make_spec(pool(high=4)))
    assert eviction(world, "c-p-0") == []
    world.vanish("c-p-0")
    assert play(world) == ["create c-p-0"]


def test_workers_of_one_role_for_good_take_no_other_one_over() -> None:
    world = settled(make_spec(pool("a", high=1, roles=("prefill",)), pool("b", high=1, roles=("decode",))))
    world.set("c-a-0", deleting=True)
    assert world.plan().actions == ()


def test_progressing_says_why_a_node_drain_waits() -> None:
    world = settled(make_spec(pool(high=4)))
    world.set("c-p-0", deleting=True)
    world.vanish("c-p-0")
    for action in world.plan().actions:
        world.do(action)
    said = condition(world.plan(), ConditionType.PROGRESSING)
    assert said.reason is Reason.WORKERS_STARTING
    assert "a node drain waits for it" in said.message
    world.settle()
    assert "drain" not in condition(world.plan(), ConditionType.PROGRESSING).message


def test_a_terminating_worker_above_the_new_bound_still_has_its_gpus() -> None:
    world = settled(make_spec(pool(high=3)))
    world.set("c-p-2", deleting=True)
    world.evict("c-p-0")
    world.set("c-p-0", deleting=True)
    world.vanish("c-p-0")
    world.spec = make_spec(pool(high=2))
    assert "CreateWorker" not in kinds(world.plan())


def test_a_drain_that_is_no_longer_wanted_ends() -> None:
    world = settled(make_spec(pool(high=4)))
    world.spec = make_spec(pool(high=3))
    for action in world.plan().actions:
        world.do(action)
    assert world.workers["c-p-3"].role is Role.DRAINING
    world.spec = make_spec(pool(high=4))
    assert play(world) == ["decode c-p-3"]
    assert world.roles() == {P: 2, D: 2}


def test_a_new_revision_replaces_workers_one_by_one() -> None:
    world = settled(make_spec(pool(high=4)))
    world.spec = make_spec(pool(high=4), model="other")
    done = play(world)
    assert done == [f"{what} c-p-{n}" for n in range(4) for what in ("drain", "delete", "create")]


def test_a_new_revision_of_one_and_one_covers_the_role_meanwhile() -> None:
    world = settled(make_spec(pool(high=2)))
    world.spec = make_spec(pool(high=2), model="other")
    done = play(world)
    assert done[:4] == ["mixed c-p-1", "drain c-p-0", "delete c-p-0", "create c-p-0"]
    assert world.roles() == {P: 1, D: 1}


def test_a_new_revision_that_does_not_start_stops_the_rollout() -> None:
    world = settled(make_spec(pool(high=4)))
    world.spec = make_spec(pool(high=4), model="broken")
    old = world.revision("p")
    for _ in range(20):
        for action in world.plan().actions:
            world.do(action)
        for name in list(world.workers):
            world.vanish(name)
            world.report_idle(name)
        world.pass_time(3)
    assert sum(1 for w in world.workers.values() if w.ready) == 3
    assert sum(1 for w in world.workers.values() if w.spec_hash == old) == 1


def test_a_stale_worker_that_serves_nobody_is_replaced_at_once() -> None:
    world = settled(make_spec(pool(high=4)))
    for name in world.workers:
        world.crash(name)
    world.spec = make_spec(pool(high=4), model="fixed")
    assert kinds(world.plan()) == ["DeleteWorker"] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"slo": {"ttft": "1s"}},
        {"admission": {"policy": "Threshold"}},
        {"gateway": {"replicas": 3}},
        {"balance": {"flip": {"drainTimeout": "90s"}}},
        {"engine": {"kvCache": {"dtype": "auto"}}},  # said out loud, still the default
    ],
)
def test_what_is_no_part_of_a_worker_restarts_none(changes: dict[str, object]) -> None:
    world = settled(make_spec(pool()))
    document = {"model": {"name": "m"}, "pools": [pool()], **changes}
    world.spec = msgspec.convert(document, InferenceClusterSpec)
    assert kinds(world.plan()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "m", "maxModelLen": 64}},
        {"engine": {"image": "elsewhere/worker:2"}},
        {"engine": {"kvCache": {"dtype": "bf16"}}},
        {"engine": {"kvCache": {"dtype": "fp8"}}},
        {"engine": {"args": ["--max-num-seqs=8"]}},
        {"pools": [{**pool(), "template": {"spec": {"priorityClassName": "high"}}}]},
        {"pools": [{**pool(), "accelerator": "L40S-48GB"}]},
    ],
)
def test_what_is_part_of_a_worker_replaces_it(changes: dict[str, object]) -> None:
    world = settled(make_spec(pool()))
    document = {"model": {"name": "m"}, "pools": [pool()], **changes}
    world.spec = msgspec.convert(document, InferenceClusterSpec)
    assert kinds(world.plan()) == ["StartDrain"]


def test_an_evicted_pod_is_replaced() -> None:
    world = settled(make_spec(pool()))
    world.evict("c-p-1")
    assert play(world) == ["delete c-p-1", "create c-p-1"]


def test_a_paused_cluster_is_left_alone_and_says_so() -> None:
    world = World(make_spec(pool()))
    result = plan(world.snapshot(paused=True), START)
    assert result.actions == ()
    assert "Paused" in condition(result, ConditionType.PROGRESSING).message


def test_a_mode_without_input_says_so_in_progressing() -> None:
    result = settled(make_spec(pool(), mode="Auto")).plan()
    progressing = condition(result, ConditionType.PROGRESSING)
    assert progressing.reason is Reason.METRICS_UNKNOWN
    assert "holds what stands" in progressing.message


def test_a_settled_cluster_is_available_and_quiet() -> None:
    result = settled(make_spec(pool())).plan()
    assert [(c.type, c.status.value, c.reason) for c in result.conditions] == [
        (ConditionType.AVAILABLE, "True", Reason.READY),
        (ConditionType.PROGRESSING, "False", Reason.RECONCILED),
        (ConditionType.DEGRADED, "False", Reason.HEALTHY),
    ]
    assert (result.status.ratio, result.status.ready, result.status.endpoint) == (
        "2P:2D",
        "4/4",
        "http://10.0.0.1:8080",
    )
    assert result.requeue_after_seconds == 300


@pytest.mark.parametrize("mode", ["Manual", "Auto"])
def test_a_cluster_that_only_waits_for_its_pods_is_looked_at_less_and_less(mode: str) -> None:
    world = World(make_spec(pool(), mode=mode))
    for action in world.plan().actions:
        world.do(action)
    assert {worker.phase for worker in world.workers.values()} == {WorkerPhase.PENDING}
    waits = []
    for seconds in (1, 59, 240, 3_600):
        world.pass_time(seconds)
        waits.append(world.plan().requeue_after_seconds)
    assert waits == [TUNING.tick_seconds, 6.0, 30.0, TUNING.resync_seconds]
    # One Pod runs: its engine starts, and there is more to wait for than events.
    world.set(next(iter(world.workers)), phase=WorkerPhase.RUNNING)
    assert world.plan().requeue_after_seconds == TUNING.tick_seconds


@pytest.mark.parametrize(
    ("crashed", "gateways", "reason"),
    [
        ([], 0, Reason.GATEWAY_NOT_READY),
        (["c-p-0", "c-p-1"], 2, Reason.ROLE_EMPTY),
        (["c-p-0", "c-p-1", "c-p-2", "c-p-3"], 0, Reason.NO_READY_WORKERS),
        (["c-p-1", "c-p-3"], 1, Reason.READY),
    ],
)
def test_available_means_every_kind_of_work_is_served(crashed: list[str], gateways: int, reason: Reason) -> None:
    world = settled(make_spec(pool()))
    for name in crashed:
        world.crash(name)
    snapshot = replace(world.snapshot(), gateway=GatewayState(desired=2, ready=gateways))
    assert condition(plan(snapshot, START), ConditionType.AVAILABLE).reason is reason


@pytest.mark.parametrize(
    ("exit_code", "meaning"),
    [(64, "its configuration cannot be used"), (70, "vLLM did not come up"), (71, "vLLM died while serving")],
)
def test_a_failed_engine_is_named_with_its_last_lines_and_blocks_nobody(exit_code: int, meaning: str) -> None:
    world = settled(make_spec(pool()))
    lines = "\n".join(f"line {n}" for n in range(1000)) + "\nRuntimeError: out of luck"
    world.set("c-p-0", ready=False, termination=Termination(exit_code=exit_code, message=lines))
    world.evict("c-p-3")
    result = world.plan()
    degraded = condition(result, ConditionType.DEGRADED)
    assert (degraded.status.value, degraded.reason) == ("True", Reason.ENGINE_FAILED)
    assert "Pod c-p-0" in degraded.message
    assert meaning in degraded.message
    assert degraded.message.endswith("RuntimeError: out of luck")
    assert len(degraded.message.encode()) < 1300
    assert kinds(result) == ["DeleteWorker"]
    assert [event.reason for event in result.events] == [Reason.ENGINE_FAILED]


def test_a_stalled_engine_has_a_reason_of_its_own() -> None:
    world = settled(make_spec(pool()))
    said = "EngineStalled: vLLM made no progress for 61 s"
    world.set("c-p-0", ready=False, termination=Termination(exit_code=72, message=said))
    degraded = condition(world.plan(), ConditionType.DEGRADED)
    assert (degraded.status.value, degraded.reason) == ("True", Reason.ENGINE_STALLED)
    assert "c-p-0" in degraded.message
    assert said in degraded.message


@pytest.mark.parametrize(
    ("minutes", "stage", "reported"),
    [
        (29, None, False),
        (34, None, True),
        (34, Stage.READY, True),
        (34, Stage.WEIGHTS, False),
        (119, "a stage of a newer agent", False),
        (124, Stage.WEIGHTS, True),
    ],
)
def test_a_start_that_makes_progress_may_take_longer_than_the_start_timeout(
    minutes: float, stage: str | None, reported: bool
) -> None:
    """The agent gives up a start without progress after `startTimeout`, and any start after four times as long."""
    world = settled(make_spec(pool()))
    load = msgspec.structs.replace(idle_load(world.workers["c-p-0"]), stage=stage)
    world.set("c-p-0", ready=False, unready_since=world.now, load=load)
    world.pass_time(minutes * 60)
    reasons = {found.reason for found in world.plan().conditions}
    assert (Reason.PROGRESS_DEADLINE_EXCEEDED in reasons) is reported


def test_an_event_about_a_fault_is_said_once() -> None:
    world = settled(make_spec(pool()))
    world.set("c-p-0", ready=False, waiting_reason="CrashLoopBackOff")
    first = world.plan()
    second = plan(replace(world.snapshot(), status=first.status), world.now)
    assert (len(first.events), second.events) == (1, ())


def test_an_unschedulable_worker_is_named_with_the_schedulers_words() -> None:
    world = settled(make_spec(pool()))
    world.set("c-p-2", phase=WorkerPhase.PENDING, ready=False, unschedulable="0/3 nodes are available")
    degraded = condition(world.plan(), ConditionType.DEGRADED)
    assert degraded.reason is Reason.WORKER_UNSCHEDULABLE
    assert degraded.message == (
        "c-p-2 cannot be scheduled: 0/3 nodes are available. Add nodes with the label and the resources that the pool "
        "asks for, or lower workers.max."
    )


def test_transition_times_change_only_with_the_status() -> None:
    world = settled(make_spec(pool()))
    first = world.plan()
    later = START + timedelta(hours=1)
    second = plan(replace(world.snapshot(), status=first.status), later)
    assert second.status == first.status
    world.crash("c-p-0")
    world.crash("c-p-1")
    third = plan(replace(world.snapshot(), status=first.status), later)
    assert condition(third, ConditionType.AVAILABLE).last_transition_time == "2026-01-01T01:00:00Z"
    assert condition(third, ConditionType.DEGRADED) == condition(first, ConditionType.DEGRADED)


def test_an_agent_that_did_not_hear_its_role_is_told_again() -> None:
    world = settled(make_spec(pool()))
    world.set("c-p-0", role_epoch=3, load=idle_load(world.workers["c-p-0"]))
    (action,) = world.plan().actions
    assert action == TellRole(name="c-p-0", uid=world.workers["c-p-0"].uid, role=P, epoch=3)
    assert world.plan().status.last_decision is None


def test_a_refusal_of_the_api_server_is_in_progressing_and_stays_the_same() -> None:
    world = settled(make_spec(pool()))
    said = "pods is forbidden: exceeded quota"
    failed, now = Reason.RECONCILE_FAILED, START
    first = stopped_status(failed, said, status=world.plan().status, last=world.status, generation=1, now=now)
    snapshot = replace(world.snapshot(), status=first)
    again = stopped_status(failed, said, status=plan(snapshot, now).status, last=first, generation=1, now=now)
    assert again == first
    by_type = {c.type: c for c in first.conditions}
    assert by_type[ConditionType.PROGRESSING].reason is Reason.RECONCILE_FAILED


def test_a_spec_that_cannot_be_read_leaves_what_runs_and_says_so() -> None:
    status = settled(make_spec(pool())).plan().status
    invalid = stopped_status(Reason.INVALID_SPEC, "Expected `int`", status=status, generation=7, now=START)
    by_type = {c.type: c for c in invalid.conditions}
    assert by_type[ConditionType.AVAILABLE].reason is Reason.READY
    assert by_type[ConditionType.DEGRADED].reason is Reason.INVALID_SPEC
    assert by_type[ConditionType.DEGRADED].observed_generation == 7
    assert invalid.endpoint == status.endpoint
