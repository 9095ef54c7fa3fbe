"""How fast this machine is, and waiting that follows it: every deadline of a test goes through `deadline_seconds`."""

from __future__ import annotations

import asyncio
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")
Errors = tuple[type[Exception], ...]
What = str | Callable[[], str]

VARIABLE = "FULCRUM_TEST_MACHINE_FACTOR"
"""Environment variable with the factor of this run; set beforehand, it replaces the measurement."""
PROCESSES = 4
"""Processes that the probe runs at once: about as many as one integration test keeps busy."""
WORK = "n = 0\nfor i in range(300_000): n = (n * 31 + i) & 0xFFFF"
REFERENCE_SECONDS = 0.09
"""What the probe takes with four free cores: one process alone on an AMD EPYC 7003 at 2.45 GHz, least of 16 rounds."""
MOST = 10.0
"""Largest factor. A test that hangs then ends after 50 minutes; slower machines cannot run the tests in useful time."""


def factor_of(probe_seconds: float) -> float:
    """The factor, in [1, MOST], that belongs to a probe's duration."""
    return min(max(probe_seconds / REFERENCE_SECONDS, 1.0), MOST)


def probe_seconds() -> float:
    """Start PROCESSES interpreters that compute, and wait for all: few, slow and busy cores all make it longer."""
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", WORK]) for _ in range(PROCESSES)]
    for process in processes:
        process.wait()
    return time.monotonic() - began


def factor() -> float:
    """By how much deadlines are longer here than on a quick machine. The first call of a run measures it."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{factor_of(probe_seconds()):.2f}"  # the processes of pytest-xdist inherit it
    return max(float(os.environ[VARIABLE]), 1.0)


def deadline_seconds(seconds: float) -> float:
    """How long to wait on this machine for what takes less than `seconds` on a quick one."""
    return seconds * factor()


def wait_until(
    condition: Callable[[], T],
    *,
    what: What = "",
    seconds: float = 60.0,
    not_yet: Errors = (),
    pause_seconds: float = 0.05,
) -> T:
    """Poll until `condition` returns something true, and return it.

    `seconds` are those of a quick machine. Errors of the types `not_yet` count as false. AssertionError with `what`
    (text, or a function that gives it, such as a log) and the last value or error when the time is over.
    """
    poll = _Poll(what, seconds)
    while True:
        last: object
        try:
            if last := condition():
                return last
        except not_yet as error:
            last = error
        poll.check(last)
        time.sleep(pause_seconds)


async def eventually(
    condition: Callable[[], Awaitable[T] | T],
    *,
    what: What = "",
    seconds: float = 60.0,
    not_yet: Errors = (),
    pause_seconds: float = 0.01,
) -> T:
    """`wait_until` in a running loop. `condition` is a plain or async function; the deadline also ends a call of it."""
    poll = _Poll(what, seconds)
    while True:
        last: object
        try:
            async with asyncio.timeout(poll.left_seconds()) as bound:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
            if found:
                return cast("T", found)
            last = found
        except not_yet as error:
            last = error
        except TimeoutError as error:
            if not bound.expired():
                raise
            last = error
        poll.check(last)
        await asyncio.sleep(pause_seconds)


def _text(what: What) -> str:
    return what if isinstance(what, str) else what()


class _Poll:
    """The deadline of one wait, and what its failure says."""

    def __init__(self, what: What, seconds: float) -> None:
        self._what = what
        self._seconds = deadline_seconds(seconds)
        self._end = time.monotonic() + self._seconds

    def left_seconds(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    def check(self, last: object) -> None:
        if time.monotonic() >= self._end:
            raise AssertionError(f"not within {self._seconds:g} s: {_text(self._what)} (last: {last!r})")


def cost_ratio(
    small: Callable[[], Any],
    large: Callable[[], Any],
    *,
    rounds: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Cost of `large` in units of `small`: both are run in turns, and the median of the rounds' ratios is taken.

    So neither a disturbed call counts nor a core that becomes slower or quicker between two rounds. By default cost is
    CPU time of this process, so that other processes hardly count. Each call should take 1 ms or more.
    """
    ratios = []
    for _ in range(rounds):
        times = [clock()]
        for run in (small, large):
            run()
            times.append(clock())
        ratios.append((times[2] - times[1]) / max(times[1] - times[0], 1e-9))
    return statistics.median(ratios)


def undisturbed(ratio: Callable[[], float], *, at_most: float, rounds: int = 3, what: What = "") -> None:
    """Measure a ratio of durations until it is `at_most`; AssertionError with all of them after `rounds`.

    For tests of real engines: other work on the machine spoils one round, and a fault spoils all of them.
    """
    ratios: list[float] = []
    while len(ratios) < rounds:
        ratios.append(ratio())
        if ratios[-1] <= at_most:
            return
    raise AssertionError(f"all of {[round(each, 2) for each in ratios]} above {at_most:g}: {_text(what)}")
