"""Epochs of the role, and when a worker counts as drained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.api.worker import RoleRequest
from fulcrum_worker.drain import wait_until_idle
from fulcrum_worker.engine_metrics import EngineMetrics
from fulcrum_worker.roles import RoleOutcome, WorkerRole

IDLE = EngineMetrics(running=0, waiting=0, kv_usage=0.0)
BUSY = EngineMetrics(running=1, waiting=0, kv_usage=0.1)
HOLDING = EngineMetrics(running=0, waiting=0, kv_usage=0.1)
UNKNOWN = EngineMetrics()


@pytest.mark.parametrize(
    ("role", "epoch", "outcome", "after"),
    [
        (Role.DECODE, 6, RoleOutcome.CHANGED, (Role.DECODE, 6)),
        (Role.PREFILL, 9, RoleOutcome.CHANGED, (Role.PREFILL, 9)),
        (Role.PREFILL, 5, RoleOutcome.UNCHANGED, (Role.PREFILL, 5)),
        (Role.DECODE, 5, RoleOutcome.CONFLICT, (Role.PREFILL, 5)),
        (Role.DECODE, 4, RoleOutcome.STALE, (Role.PREFILL, 5)),
        (Role.PREFILL, 4, RoleOutcome.STALE, (Role.PREFILL, 5)),
        (Role.DRAINING, 6, RoleOutcome.CHANGED, (Role.DRAINING, 6)),
    ],
)
def test_epochs(role: Role, epoch: int, outcome: RoleOutcome, after: tuple[Role, int]) -> None:
    new, found = WorkerRole(role=Role.PREFILL, epoch=5).asked(RoleRequest(role=role, role_epoch=epoch))
    assert found is outcome
    assert (new.role, new.epoch) == after


def test_what_ends_a_drain() -> None:
    worker = WorkerRole(role=Role.DECODE, epoch=1).asked_to_drain()
    assert worker.draining
    assert worker.asked(RoleRequest(role=Role.DECODE, role_epoch=1))[0].draining, "a repeated message ends no drain"
    assert not worker.asked(RoleRequest(role=Role.PREFILL, role_epoch=2))[0].draining
    assert worker.asked(RoleRequest(role=Role.DRAINING, role_epoch=2))[0].draining
    assert worker.asked_to_terminate().asked(RoleRequest(role=Role.PREFILL, role_epoch=2))[0].draining


@given(st.lists(st.builds(RoleRequest, role=st.sampled_from(Role), role_epoch=st.integers(0, 20))))
def test_the_epoch_never_falls_and_order_of_old_messages_does_not_matter(requests: list[RoleRequest]) -> None:
    worker = WorkerRole(role=Role.MIXED, epoch=0)
    for request in requests:
        after, _ = worker.asked(request)
        assert after.epoch == max(worker.epoch, request.role_epoch)
        assert after.asked(request)[0] == after, "the same message twice is the same message"
        worker = after


@pytest.mark.parametrize(
    ("scrapes", "drained", "used"),
    [
        ([IDLE, IDLE], True, 2),
        ([BUSY, IDLE, IDLE], True, 3),
        ([IDLE, BUSY, IDLE, IDLE], True, 4),
        ([IDLE, UNKNOWN, IDLE, IDLE], True, 4),
        ([HOLDING, HOLDING, IDLE, IDLE], True, 4),
        ([BUSY] * 50, False, None),
        ([HOLDING] * 50, False, None),
        ([UNKNOWN] * 50, False, None),
        ([IDLE, BUSY] * 25, False, None),
    ],
)
async def test_two_idle_scrapes_in_a_row(scrapes: list[EngineMetrics], drained: bool, used: int | None) -> None:
    left: Iterator[EngineMetrics] = iter(scrapes)
    count = 0

    async def scrape() -> EngineMetrics:
        nonlocal count
        count += 1
        return next(left)

    # One that drains does so long before its time is up; the others are looked at twenty times, or fewer.
    timeout_seconds = 60.0 if drained else 0.1
    assert await wait_until_idle(scrape, timeout_seconds=timeout_seconds, poll_seconds=0.005) is drained
    assert used is None or count == used


async def test_no_time_means_one_look() -> None:
    async def scrape() -> EngineMetrics:
        return IDLE

    assert not await wait_until_idle(scrape, timeout_seconds=0)
