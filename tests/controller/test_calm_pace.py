"""Calm clusters are looked at less often only where the processor time for it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.machine import wait_until

from fulcrum.controller.calm_pace import (
    LONGEST_SECONDS,
    MEASURED_SECONDS,
    SHARE,
    CalmPace,
    busy_seconds,
    loads_every_seconds,
)
from fulcrum.controller.sources import SHOWN_LOAD_SECONDS, TICK_SECONDS
from fulcrum.controller.speeds import ROW_SECONDS


class Operator:
    """Uses processor time for looks at calm clusters, which take `look_seconds` each, and `else_cores` beside them."""

    def __init__(self, clusters: int, *, look_seconds: float, else_cores: float = 0.0) -> None:
        self.clusters, self.look_seconds, self.else_cores = clusters, look_seconds, else_cores
        self.now = self.cpu_seconds = 0.0
        self.pace = CalmPace(clock=lambda: self.now, used_seconds=lambda: self.cpu_seconds)

    @property
    def cores(self) -> float:
        """What it would use, if there were as many."""
        return self.else_cores + self.clusters * self.look_seconds / self.pace.seconds()

    def run(self, minutes: float) -> list[float]:
        """The pace over time; no more than one core is there."""
        paces = []
        for _ in range(int(minutes * 60 / MEASURED_SECONDS)):
            self.cpu_seconds += min(1.0, self.cores) * MEASURED_SECONDS
            self.now += MEASURED_SECONDS
            paces.append(self.pace.seconds())
        return paces


@pytest.mark.parametrize("else_cores", [0.0, 0.3])
def test_few_clusters_are_looked_at_as_often_as_ever(else_cores: float) -> None:
    assert set(Operator(20, look_seconds=0.025, else_cores=else_cores).run(10)) == {TICK_SECONDS}


@pytest.mark.parametrize("clusters", [100, 300, 600])
def test_many_clusters_leave_a_part_of_the_core_for_those_in_trouble(clusters: int) -> None:
    operator = Operator(clusters, look_seconds=0.015)
    operator.run(5)
    assert operator.cores == pytest.approx(SHARE, rel=0.02)
    assert TICK_SECONDS < operator.pace.seconds() < LONGEST_SECONDS


def test_too_many_clusters_are_still_looked_at_within_a_window() -> None:
    operator = Operator(10_000, look_seconds=0.015)
    assert operator.run(5)[-1] == LONGEST_SECONDS


def test_the_usual_pace_comes_back() -> None:
    operator = Operator(1000, look_seconds=0.015)
    operator.run(5)
    operator.clusters = 10
    paces = operator.run(5)
    assert paces[-1] == TICK_SECONDS
    assert sorted(paces, reverse=True) == paces


def test_reports_are_read_as_often_as_they_teach_something_and_at_the_longest_pace_as_rarely_as_in_manual() -> None:
    paces = [TICK_SECONDS, 5.0, 10.0, 15.0, LONGEST_SECONDS, 2 * LONGEST_SECONDS]
    read = [loads_every_seconds(every) for every in paces]
    assert read[0] == ROW_SECONDS
    assert read[4] == SHOWN_LOAD_SECONDS
    assert read == sorted(read)
    assert all(loads >= every for loads, every in zip(read, paces, strict=True))


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="told by Linux alone")
def test_time_that_the_thread_waits_for_a_core_counts_as_time_in_which_it_is_busy() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # inherits the one core
    try:
        busy, computed = busy_seconds(), time.thread_time()

        def waited() -> bool:
            sum(range(1_000_000))
            return busy_seconds() - busy > 1.2 * (time.thread_time() - computed) > 0

        wait_until(waited, what="the other process took a part of the core")
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
