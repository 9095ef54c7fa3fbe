"""The queue: each key waits once, fails alone and is tried again."""

from __future__ import annotations

import asyncio
import contextlib

from tests.machine import deadline_seconds

from fulcrum.kube import ApiError
from fulcrum_local.controllers.queue import WorkQueue


async def test_keys_wait_once_fail_alone_and_come_again() -> None:
    queue = WorkQueue[str]("test")
    seen: list[str] = []
    done = asyncio.Event()

    async def reconcile(key: str) -> float | None:
        seen.append(key)
        if key == "conflicting" and seen.count(key) < 3:
            raise ApiError(409, "Conflict", "changed meanwhile")
        if key == "broken" and seen.count(key) < 2:
            raise KeyError(key)
        if key == "again" and seen.count(key) < 2:
            return 0.01
        if {"conflicting": 3, "broken": 2, "again": 2, "plain": 1, "late": 1}.items() <= {
            each: seen.count(each) for each in seen
        }.items():
            done.set()
        return None

    for key in ("conflicting", "broken", "again", "plain", "plain"):
        queue.add(key)
    queue.add("late", 30)
    queue.add("late", 0.02)
    running = asyncio.create_task(queue.run(reconcile))
    await asyncio.wait_for(done.wait(), deadline_seconds(10))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert seen.count("plain") == 1
