"""A GPU that is slower than its pool: named in the status with its node, and said once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.decide.world import World, make_spec, pool

from fulcrum.api.reasons import Reason
from fulcrum.api.status import MAX_SLOW_WORKERS
from fulcrum.decide.measurements import Measurements
from fulcrum.report import BalancePlan, plan


def world_of(workers: int = 4, *, accelerator: str = "H100-SXM-80GB", mode: str = "Manual") -> World:
    world = World(make_spec({**pool(low=workers, high=workers), "accelerator": accelerator}, mode=mode))
    world.settle()
    for number in range(workers):
        world.set(f"c-p-{number}", node=f"n{number}")
    return world


def look(world: World, *times: float | None) -> BalancePlan:
    """Plan with these paces of the workers, and let the status say so."""
    paces = {world.workers[f"c-p-{number}"].uid: each for number, each in enumerate(times) if each is not None}
    world.measurements = Measurements(paces=paces, unknown="too early")
    done = plan(world.snapshot(), world.now)
    world.status = done.status
    world.pass_time(10)
    return done


def named(done: BalancePlan) -> list[tuple[str, str, float]]:
    return [(slow.worker, slow.node, slow.factor) for slow in done.status.slow_workers or ()]


@pytest.mark.parametrize("mode", ["Manual", "Auto", "Observe"])
def test_one_event_names_worker_node_and_how_much_slower_it_is(mode: str) -> None:
    world = world_of(mode=mode)
    first = look(world, 1.0, 1.0, 1.0, 1.62)
    assert named(first) == [("c-p-3", "n3", 1.6)]
    (event,) = [each for each in first.events if each.reason is Reason.WORKER_SLOW]
    assert event.message.startswith("Worker c-p-3 on node n3 takes 1.6 times as long as the others of pool p")
    for times in (1.7, 1.5, 1.4, 1.2):
        again = look(world, 1.0, 1.0, 1.0, times)
        assert [each.reason for each in again.events if each.reason is Reason.WORKER_SLOW] == []
    assert named(look(world, 1.0, 1.0, 1.0, 1.1)) == []


def test_figures_that_hardly_change_are_no_write() -> None:
    world = world_of()
    first = look(world, 1.0, 1.0, 1.0, 2.0)
    assert look(world, 1.0, 1.02, 1.0, 2.3).status == first.status
    assert named(look(world, 1.0, 1.0, 1.0, 3.0)) == [("c-p-3", "n3", 3.0)]


def test_an_operator_that_starts_anew_keeps_what_is_known() -> None:
    world = world_of()
    first = look(world, 1.0, 1.0, 1.0, 2.0)
    assert look(world).status == first.status
    assert look(world, 1.0, 1.0, 1.0).status == first.status


@pytest.mark.parametrize(
    "change",
    [{"ready": False}, {"deleting": True}, {"spec_hash": "older"}, {"node": None}],
)
def test_a_worker_that_is_not_up_as_the_spec_says_is_not_compared(change: dict[str, Any]) -> None:
    world = world_of()
    look(world, 1.0, 1.0, 1.0, 2.0)
    world.set("c-p-3", **change)
    assert named(look(world, 1.0, 1.0, 1.0, 2.0)) == []


def test_a_replacement_on_another_node_is_another_worker() -> None:
    world = world_of()
    look(world, 1.0, 1.0, 1.0, 2.0)
    world.set("c-p-3", node="n9")
    moved = look(world, 1.0, 1.0, 1.0, 2.0)
    assert named(moved) == [("c-p-3", "n9", 2.0)]
    assert len(moved.events) == 1


def test_processes_that_share_cores_are_no_slow_gpus() -> None:
    assert named(look(world_of(accelerator="cpu"), 1.0, 1.0, 1.0, 2.0)) == []


def test_the_list_is_bounded() -> None:
    world = world_of(3 * MAX_SLOW_WORKERS)
    times = [1.0] * (2 * MAX_SLOW_WORKERS - 4) + [1.5 + number / 10 for number in range(MAX_SLOW_WORKERS + 4)]
    found = named(look(world, *times))
    assert len(found) == MAX_SLOW_WORKERS
    assert found[0][2] == max(factor for _, _, factor in found)


def test_a_slow_worker_changes_no_decision() -> None:
    """Routing learns it by itself; people decide about the GPU."""
    world = world_of()
    plain = plan(replace(world.snapshot(), measurements=Measurements()), world.now)
    found = look(world, 1.0, 1.0, 1.0, 3.0)
    assert found.actions == plain.actions
    assert found.conditions == plain.conditions
