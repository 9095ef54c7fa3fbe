"""A Pod's loop sleeps until its alarm rings: one that is lost is a container that never comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop
from tests.machine import deadline_seconds

from fulcrum_local.kubelet.alarm import Alarm

LOOPS = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "own"])
Factory = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_whoever_is_woken_too_early_is_woken_again(loop_factory: Factory) -> None:
    async def wait_until(due: float) -> None:
        woken = asyncio.Event()
        alarm = Alarm(woken.set)
        while (left_seconds := due - time.monotonic()) > 0:
            alarm.within(left_seconds)
            alarm.within(left_seconds)  # as a Pod's loop does that looks twice before it sleeps
            async with asyncio.timeout(deadline_seconds(5)):
                await woken.wait()
            woken.clear()

    async def many() -> None:
        # Of fractions of a millisecond of all sizes, some are rounded down.
        for number in range(300):
            await wait_until(time.monotonic() + 0.0035 + number % 27 * 0.000037)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(many())


@LOOPS
def test_the_earliest_wish_counts_and_one_that_was_taken_back_is_none(loop_factory: Factory) -> None:
    async def rings() -> int:
        rung: list[float] = []
        woken = asyncio.Event()

        def ring() -> None:
            rung.append(time.monotonic())
            woken.set()

        alarm = Alarm(ring)
        began_at = time.monotonic()
        alarm.within(3000)
        alarm.within(0.02)
        alarm.within(2000)
        async with asyncio.timeout(deadline_seconds(5)):
            await woken.wait()
        assert rung[0] - began_at < deadline_seconds(5)
        woken.clear()
        alarm.within(0.02)
        alarm.off()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await woken.wait()
        alarm.within(0.02)
        async with asyncio.timeout(deadline_seconds(5)):
            await woken.wait()
        return len(rung)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(rings()) == 2
