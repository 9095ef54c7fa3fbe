"""A worker whose GPU failed goes to another node, once; its node is named and avoided for a while, and never shut."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.decide.world import World, make_spec, pool

from fulcrum.api.device_fault import AVOIDED, DeviceFault, said
from fulcrum.api.reasons import Reason
from fulcrum.api.status import MAX_FAILED_GPUS
from fulcrum.api.types import ConditionType, FailedGpu, InferenceClusterStatus
from fulcrum.api.worker import EXIT_DEVICE_FAILED, EXIT_ENGINE_DIED
from fulcrum.decide import Refusal, Termination, WorkerPhase
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import CreateWorker, DeleteWorker

ECC = DeviceFault("uncorrectable ECC error", "0000:3b:00")


def serving(workers: int = 2) -> World:
    """Workers `c-p-0` ... on nodes `n0` ..."""
    world = World(make_spec(pool(low=workers, high=workers)))
    world.settle()
    for number in range(workers):
        world.set(f"c-p-{number}", node=f"n{number}")
    world.pass_time(600)
    world.status = world.plan().status
    return world


def fail(world: World, name: str, fault: DeviceFault | None = ECC, *, code: int = EXIT_DEVICE_FAILED) -> None:
    message = f"{said(fault) if fault else ''}vLLM was killed by SIGABRT while serving; its last lines:\nx"
    ended = Termination(exit_code=code, message=message, at=world.now)
    world.set(name, ready=False, ready_since=None, load=None, termination=ended)


def step(world: World) -> BalancePlan:
    """One tick as the operator has it: carry out, then write the status."""
    done = world.plan()
    for action in done.actions:
        world.do(action)
    world.status = done.status
    world.pass_time(2)
    return done


def deletions(done: BalancePlan) -> list[tuple[str, Reason]]:
    return [(action.name, action.reason) for action in done.actions if isinstance(action, DeleteWorker)]


def test_the_node_is_named_before_the_worker_leaves_it_and_the_others_go_on() -> None:
    world = serving()
    fail(world, "c-p-0")
    first = step(world)
    assert deletions(first) == [], "an operator that dies now has lost nothing"
    (named,) = first.status.failed_gpus or ()
    assert (named.node, named.gpu, named.fault, named.worker) == ("n0", ECC.gpu, ECC.what, "c-p-0")
    degraded = next(each for each in first.conditions if each.type is ConditionType.DEGRADED)
    assert degraded.reason is Reason.GPU_FAILED
    assert "node n0 failed under Pod c-p-0 (uncorrectable ECC error)" in degraded.message
    assert deletions(step(world)) == [("c-p-0", Reason.GPU_FAILED)]
    assert world.workers["c-p-1"].serving
    world.vanish("c-p-0")
    assert [action.name for action in step(world).actions if isinstance(action, CreateWorker)] == ["c-p-0"]
    assert world.status.failed_gpus == (named,), "its replacement avoids the node although no Pod tells of it any more"


def test_one_event_names_node_and_gpu() -> None:
    world = serving()
    fail(world, "c-p-0")
    first = plan(world.snapshot(), world.now)
    (event,) = first.events
    assert event.reason is Reason.GPU_FAILED
    assert event.warning
    assert "GPU 0000:3b:00 of node n0 failed under c-p-0" in event.message
    world.pass_time(5)
    again = plan(world.snapshot(), world.now)  # the operator died before it wrote the status
    assert [each.subject for each in again.events] == [event.subject], "the same name: the API server has it already"
    assert plan(replace(world.snapshot(), status=first.status), world.now).events == ()


def test_a_worker_that_is_placed_on_the_node_again_stays() -> None:
    """No other node had room: to make its Pod anew each time would be a loop without pauses."""
    world = serving()
    fail(world, "c-p-0")
    for _ in range(2):
        step(world)
    world.vanish("c-p-0")
    step(world)
    world.set("c-p-0", node="n0", phase=WorkerPhase.RUNNING)
    world.pass_time(60)
    fail(world, "c-p-0")
    for _ in range(5):
        done = step(world)
        assert deletions(done) == []
        assert done.events == ()
    world.pass_time(AVOIDED.total_seconds())
    fail(world, "c-p-0")
    assert len(step(world).events) == 1, "named anew after its time"
    assert deletions(step(world)) == [("c-p-0", Reason.GPU_FAILED)], "and it tries once more"


def test_another_gpu_of_the_same_node_is_another_event() -> None:
    world = serving()
    world.set("c-p-1", node="n0")
    fail(world, "c-p-0")
    step(world)
    fail(world, "c-p-1", DeviceFault("Xid 79, GPU has fallen off the bus", "0000:86:00"))
    assert len(step(world).events) == 1
    assert [gpu.gpu for gpu in world.status.failed_gpus or ()] == [ECC.gpu, "0000:86:00"]
    assert deletions(step(world)) == [("c-p-1", Reason.GPU_FAILED)]


@pytest.mark.parametrize(
    ("fault", "code", "node", "ready"),
    [
        (ECC, EXIT_ENGINE_DIED, "n0", False),  # the engine's words alone are not the agent's
        (None, EXIT_ENGINE_DIED, "n0", False),
        (ECC, EXIT_DEVICE_FAILED, None, False),
        (ECC, EXIT_DEVICE_FAILED, "n0", True),  # it came back
    ],
)
def test_what_names_no_node(fault: DeviceFault | None, code: int, node: str | None, ready: bool) -> None:
    world = serving()
    fail(world, "c-p-0", fault, code=code)
    world.set("c-p-0", node=node, ready=ready)
    assert step(world).status.failed_gpus is None
    assert deletions(step(world)) == []


def test_an_agent_of_another_release_may_say_it_in_other_words() -> None:
    world = serving()
    fail(world, "c-p-0", None)
    (named,) = step(world).status.failed_gpus or ()
    assert (named.node, named.gpu, named.fault) == ("n0", None, "unknown")


def test_a_node_is_forgotten_after_its_time_and_a_wrong_clock_shuts_none_for_longer() -> None:
    world = serving()
    fail(world, "c-p-0")
    ahead = Termination(exit_code=EXIT_DEVICE_FAILED, message=said(ECC), at=world.now + timedelta(days=400))
    world.set("c-p-0", termination=ahead)
    for _ in range(2):
        step(world)
    world.vanish("c-p-0")
    world.settle()
    assert world.status.failed_gpus
    world.pass_time(AVOIDED.total_seconds())
    assert world.plan().status.failed_gpus is None


def test_the_list_is_bounded_and_what_is_beyond_it_is_left_to_the_kubelet() -> None:
    """A cause that all nodes share, such as a driver, must not make all workers anew again and again."""
    workers = MAX_FAILED_GPUS + 4
    world = serving(workers)
    for number in range(workers):
        fail(world, f"c-p-{number}")
    step(world)
    assert len(world.status.failed_gpus or ()) == MAX_FAILED_GPUS
    assert len(deletions(step(world))) == MAX_FAILED_GPUS
    assert deletions(step(world)) == []
    encoded = msgspec.json.encode(world.status)
    assert msgspec.json.decode(encoded, type=InferenceClusterStatus) == world.status


def test_a_pool_whose_workers_may_not_be_made_keeps_its_pods() -> None:
    world = serving()
    fail(world, "c-p-0")
    step(world)
    refused = replace(world.snapshot(), refused={"p": Refusal(message="no")})
    assert deletions(plan(refused, world.now)) == []
    assert deletions(plan(replace(world.snapshot(), paused=True), world.now)) == []


def test_what_a_status_holds_of_a_gpu_fits_its_schema() -> None:
    gpu = FailedGpu(node="n" * 253, gpu="g" * 64, fault="f" * 128, worker="w" * 253, time="2026-01-01T00:00:00Z")
    status = InferenceClusterStatus(failed_gpus=(gpu,) * MAX_FAILED_GPUS)
    assert msgspec.convert(msgspec.to_builtins(status), InferenceClusterStatus) == status
