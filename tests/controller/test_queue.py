"""The queue: once in it, once in work, again on demand, slower after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fulcrum.controller.queue import FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS, KeyedQueue


class Work:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.running: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: float | None = None
        self.failures_left = 0

    async def __call__(self, key: str) -> float | None:
        assert key not in self.running, "one key, one worker"
        self.running.add(key)
        try:
            await self.gate.wait()
            self.done.append(key)
            if self.failures_left:
                self.failures_left -= 1
                msg = "on purpose"
                raise OSError(msg)
            return self.answer
        finally:
            self.running.discard(key)


@asynccontextmanager
async def running(work: Work, *, workers: int = 4) -> AsyncIterator[KeyedQueue[str]]:
    queue: KeyedQueue[str] = KeyedQueue(work, jitter=lambda: 0.0, workers=workers)
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 (what is waited for is the state of the code under test)
            await asyncio.sleep(0.005)


async def test_a_key_waits_only_once() -> None:
    work = Work()
    async with running(work) as queue:
        for _ in range(10):
            queue.add("a")
        await until(lambda: not queue.keys())
    assert work.done == ["a"]


async def test_a_key_added_while_in_work_is_worked_on_once_more() -> None:
    work = Work()
    work.gate.clear()
    async with running(work) as queue:
        queue.add("a")
        await until(lambda: work.running == {"a"})
        for _ in range(10):
            queue.add("a")
        work.gate.set()
        await until(lambda: not queue.keys())
    assert work.done == ["a", "a"]


async def test_keys_do_not_wait_for_each_other() -> None:
    work = Work()
    work.gate.clear()
    async with running(work) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: work.running == {"a", "b"})
        work.gate.set()
        await until(lambda: not queue.keys())


async def test_a_key_comes_back_when_it_said_and_at_once_when_asked() -> None:
    work = Work()
    work.answer = 0.05
    async with running(work) as queue:
        queue.add("a")
        await until(lambda: len(work.done) == 3)
        work.answer = 3600.0
        await until(lambda: len(work.done) == 4)
        assert queue.keys() == ("a",)
        queue.add("a")
        await until(lambda: len(work.done) == 5)


async def test_a_failure_is_tried_again_and_forgotten_after_success() -> None:
    work = Work()
    work.failures_left = 2
    async with running(work) as queue:
        queue.add("a")
        await until(lambda: len(work.done) == 3)
        await until(lambda: not queue.keys())


async def test_stopping_finishes_what_is_in_work_and_begins_nothing_more() -> None:
    work = Work()
    work.gate.clear()
    queue: KeyedQueue[str] = KeyedQueue(work, jitter=lambda: 0.0, workers=1)
    task = asyncio.create_task(queue.run())
    queue.add("a")
    await until(lambda: work.running == {"a"})
    queue.add("b")
    queue.stop()
    work.gate.set()
    await asyncio.wait_for(task, 5)
    assert work.done == ["a"]


def test_backoff_grows_to_a_bound_and_is_stretched_by_jitter() -> None:
    async def never(_: str) -> None:
        return None

    slow: KeyedQueue[str] = KeyedQueue(never, jitter=lambda: 1.0)
    quick: KeyedQueue[str] = KeyedQueue(never, jitter=lambda: 0.0)
    assert slow._backoff_seconds(0) == FIRST_BACKOFF_SECONDS
    assert quick._backoff_seconds(0) == FIRST_BACKOFF_SECONDS / 2
    assert slow._backoff_seconds(1000) == LAST_BACKOFF_SECONDS


async def test_keys_that_came_together_are_not_due_together_again() -> None:
    work = Work()
    work.answer = 300.0
    shares = iter(range(100))
    queue: KeyedQueue[str] = KeyedQueue(work, jitter=lambda: next(shares) / 100)
    task = asyncio.create_task(queue.run())
    for number in range(100):
        queue.add(str(number))
    await until(lambda: len(work.done) == 100 and not work.running)
    timers = [state.timer.when() for state in queue._states.values() if state.timer is not None]
    task.cancel()
    assert len(timers) == 100
    assert max(timers) - asyncio.get_running_loop().time() <= 300.0
    assert max(timers) - min(timers) > 25.0
