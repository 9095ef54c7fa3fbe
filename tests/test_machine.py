"""The machine's factor, what follows it, and what a run prints."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machine import (
    MOST,
    REFERENCE_SECONDS,
    VARIABLE,
    cost_ratio,
    deadline_seconds,
    eventually,
    factor,
    factor_of,
    probe_seconds,
    undisturbed,
    wait_until,
)
from tests.run_report import folder_lines

ROOT = Path(__file__).parents[1]
RUN = """
import os, time
import pytest

def test_processes_share_the_measurement():
    assert os.environ["{variable}"] == "{factor}"

@pytest.mark.timeout(0.4)
def test_a_mark_is_multiplied():
    time.sleep(1.2)

@pytest.mark.timeout(0.01)
def test_hangs():
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.01, 1.0), (REFERENCE_SECONDS, 1.0), (3 * REFERENCE_SECONDS, 3.0), (1000.0, MOST)],
)
def test_a_slower_machine_has_a_larger_factor_within_bounds(seconds: float, expected: float) -> None:
    assert factor_of(seconds) == pytest.approx(expected)


def test_the_probe_takes_longer_on_a_slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = min(probe_seconds() for _ in range(3))
    monkeypatch.setattr("tests.machine.WORK", "n = 0\nfor i in range(1_500_000): n = (n * 31 + i) & 0xFFFF")
    assert probe_seconds() > 2 * here


def test_the_factor_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VARIABLE in os.environ, "pytest_configure measures it"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("tests.machine.probe_seconds", lambda: 2.5 * REFERENCE_SECONDS)
    assert factor() == 2.5
    monkeypatch.setattr("tests.machine.probe_seconds", lambda: 5 * REFERENCE_SECONDS)
    assert (factor(), deadline_seconds(10)) == (2.5, 25)


def test_a_run_follows_the_factor_and_reports_seconds_per_folder(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(RUN.format(variable=VARIABLE, factor="9.0"))
    command = [sys.executable, "-m", "pytest", "-p", "tests.run_report", "-c", "pyproject.toml", "-n", "1", str(file)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, VARIABLE: "9.0"}, capture_output=True, text=True, check=False,
        timeout=deadline_seconds(60),
    )  # fmt: skip
    assert "machine: deadlines are 9.0 times" in done.stdout
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "FAILED" in done.stdout
    assert "test_hangs - Failed: Timeout" in done.stdout
    assert "seconds per folder" in done.stdout


def test_seconds_per_folder_are_sums_with_the_slowest_first() -> None:
    durations = [
        ("tests/a/test_x.py::test_1", 2.0),
        ("tests/b/test_y.py::test_2[a::b]", 3.5),
        ("tests/a/test_z.py::t", 0.5),
    ]
    durations += [("tests/c/test_q.py::t", 0.25), ("tests/d/e/test_q.py::t", 0.5)]
    assert [line.split(maxsplit=1) for line in folder_lines(durations)] == [
        ["3.5", "tests/b"],
        ["2.5", "tests/a"],
        ["0.8", "2 other folders"],
        ["6.8", "all together"],
    ]
    assert folder_lines([("tests/c/test_q.py::t", 0.25)]) == []


async def test_pollers_return_what_they_waited_for() -> None:
    values = iter([0, None, 7])
    assert wait_until(lambda: next(values)) == 7
    answers = iter([0, 8])

    async def ask() -> int:
        await asyncio.sleep(0)
        return next(answers)

    assert await eventually(ask) == 8
    assert await eventually(lambda: 9) == 9


async def test_pollers_end_with_what_they_saw_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3.0")

    def fails() -> bool:
        raise KeyError("later")

    async def hangs() -> bool:
        return await asyncio.Future[bool]()

    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.3 s: the log \(last: KeyError\('later'\)\)"):
        wait_until(fails, what=lambda: "the log", seconds=0.1, not_yet=(KeyError,))
    assert time.monotonic() - began >= 0.3
    with pytest.raises(AssertionError, match=r"not within 0\.3 s: it"):
        await eventually(hangs, what="it", seconds=0.1)
    with pytest.raises(AssertionError, match=r"not within 0\.3 s:  \(last: 0\)"):
        await eventually(lambda: 0, seconds=0.1, not_yet=(AssertionError,))
    with pytest.raises(KeyError):
        wait_until(fails)


@pytest.mark.parametrize(
    "slowness",
    [
        pytest.param([1.0] * 10, id="steady"),
        pytest.param([1.0, 1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 9.0, 1.0, 1.0], id="single calls disturbed"),
        pytest.param([1.0, 1.6] + [1.6] * 8, id="slower from the first call on"),
        pytest.param([1.6] * 9 + [1.0], id="quicker in the last call"),
    ],
)
def test_twice_the_work_costs_twice_as_much_on_a_core_that_changes(slowness: list[float]) -> None:
    now = 0.0
    factors = iter(slowness)

    def work(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds * next(factors)

        return run

    assert cost_ratio(work(0.01), work(0.02), clock=lambda: now) == pytest.approx(2.0)


def test_one_round_that_nothing_disturbed_is_enough_and_none_is_told() -> None:
    ratios = [2.0, 0.4, 3.0]
    undisturbed(lambda: ratios.pop(0), at_most=0.5)
    assert ratios == [3.0]
    with pytest.raises(AssertionError, match=r"all of \[3.0, 0.6\] above 0.5: why"):
        undisturbed(iter([3.0, 0.6]).__next__, at_most=0.5, rounds=2, what=lambda: "why")
