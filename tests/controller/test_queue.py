"""The queue: once in it, once in work, again on demand, slower after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.machine import deadline_seconds

from fulcrum.controller.queue import (
    FIRST_BACKOFF_SECONDS,
    KEPT_FOR_EVENTS,
    LAST_BACKOFF_SECONDS,
    OVERTAKEN_MOST,
    KeyedQueue,
    Wake,
)


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
    async with asyncio.timeout(deadline_seconds(5)):
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
    await asyncio.wait_for(task, deadline_seconds(5))
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


async def begun_in_order(*added: tuple[str, Wake], workers: int = 1) -> list[str]:
    """The order in which keys are begun that were added one after the other before the first turn."""
    work = Work()
    queue: KeyedQueue[str] = KeyedQueue(work, jitter=lambda: 0.0, workers=workers)
    for key, wake in added:
        queue.add(key, wake)
    task = asyncio.create_task(queue.run())
    await until(lambda: not queue.keys())
    queue.stop()
    await asyncio.wait_for(task, deadline_seconds(5))
    return work.done


async def test_changes_go_before_timers_each_in_the_order_they_came() -> None:
    done = await begun_in_order(("t1", Wake.TIMER), ("t2", Wake.TIMER), ("e1", Wake.EVENT), ("e2", Wake.EVENT))
    assert done == ["e1", "e2", "t1", "t2"]


async def test_a_key_that_waits_for_a_timers_turn_moves_up_when_it_changes_and_never_down() -> None:
    added = [("a", Wake.TIMER), ("b", Wake.TIMER), ("c", Wake.EVENT), ("b", Wake.EVENT), ("c", Wake.TIMER)]
    assert await begun_in_order(*added) == ["c", "b", "a"]


@pytest.mark.parametrize(("wake", "expected"), [(Wake.EVENT, ["a", "a", "t"]), (Wake.TIMER, ["a", "t", "a"])])
async def test_a_change_during_a_turn_goes_first_too_and_a_timer_does_not(wake: Wake, expected: list[str]) -> None:
    work = Work()
    work.gate.clear()
    async with running(work, workers=1) as queue:
        queue.add("a")
        await until(lambda: work.running == {"a"})
        queue.add("t", Wake.TIMER)
        queue.add("a", wake)
        queue.add("a", Wake.TIMER)
        work.gate.set()
        await until(lambda: not queue.keys())
    assert work.done == expected


async def test_timers_are_not_starved_by_changes_without_end() -> None:
    done: list[str] = []

    async def process(key: str) -> float | None:
        done.append(key)
        if key.startswith("e") and len(done) < 100:
            queue.add(key)  # it always changes again
        return None

    queue: KeyedQueue[str] = KeyedQueue(process, jitter=lambda: 0.0, workers=1)
    for key in ("e1", "e2"):
        queue.add(key)
    for key in ("t1", "t2", "t3"):
        queue.add(key, Wake.TIMER)
    task = asyncio.create_task(queue.run())
    await until(lambda: not queue.keys())
    queue.stop()
    await asyncio.wait_for(task, deadline_seconds(5))
    places = [place for place, key in enumerate(done) if key.startswith("t")]
    assert places == [OVERTAKEN_MOST, 2 * OVERTAKEN_MOST + 1, 3 * OVERTAKEN_MOST + 2]


async def test_what_is_new_goes_between_changes_and_timers() -> None:
    added = [("t", Wake.TIMER), ("n1", Wake.NEW), ("n2", Wake.NEW), ("e", Wake.EVENT), ("t", Wake.NEW)]
    assert await begun_in_order(*added) == ["e", "n1", "n2", "t"]
    crowd = [(f"n{number}", Wake.NEW) for number in range(2 * OVERTAKEN_MOST)]
    done = await begun_in_order(("t", Wake.TIMER), *crowd)
    assert done.index("t") == OVERTAKEN_MOST, "nothing waits for ever"


async def test_those_that_may_be_in_trouble_go_before_a_fleet_of_calm_ones() -> None:
    calm = [(f"c{number}", Wake.LOOK) for number in range(3)]
    done = await begun_in_order(*calm, ("t", Wake.TIMER), ("n", Wake.NEW), ("c2", Wake.EVENT))
    assert done == ["c2", "n", "t", "c0", "c1"]
    crowd = [(f"t{number}", Wake.TIMER) for number in range(2 * OVERTAKEN_MOST)]
    done = await begun_in_order(("c", Wake.LOOK), *crowd)
    assert done.index("c") == OVERTAKEN_MOST, "nothing waits for ever"


@pytest.mark.parametrize("slow", [Wake.NEW, Wake.TIMER, Wake.LOOK])
async def test_slow_turns_of_others_leave_workers_for_a_change(slow: Wake) -> None:
    work = Work()
    work.gate.clear()
    async with running(work, workers=4) as queue:
        for number in range(10):
            queue.add(f"t{number}", slow)
        await until(lambda: len(work.running) == 4 - KEPT_FOR_EVENTS)
        for number in range(10):
            queue.add(f"e{number}")
        await until(lambda: len(work.running) == 4)
        assert {"e0", "e1"} < work.running, "at most four together, and changes among them"
        queue.add("e0")
        queue.add("t0", Wake.EVENT)
        work.gate.set()
        await until(lambda: not queue.keys())
    assert work.done.count("e0") == 2
    assert work.done.count("t0") == 2
    assert len(work.done) == 22


async def test_a_change_in_a_fleet_does_not_wait_for_the_turns_of_the_others() -> None:
    begun: list[int] = []

    async def process(key: int) -> float | None:
        begun.append(key)
        await asyncio.sleep(0)
        return 0.0  # due again at once: the queue of timers is never empty

    queue: KeyedQueue[int] = KeyedQueue(process, jitter=lambda: 0.0)
    for key in range(1000):
        queue.add(key, Wake.TIMER)
    task = asyncio.create_task(queue.run())
    await until(lambda: len(begun) >= 1500)
    last, before = begun[-1], len(begun)
    queue.add(last - 100, Wake.EVENT)  # it had a turn just now, so its next is far
    await until(lambda: last - 100 in begun[before:])
    task.cancel()
    assert begun[before:].index(last - 100) < 8
