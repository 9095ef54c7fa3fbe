"""What a run of pytest says about its machine and its time, and pytest-timeout's limits, which follow the machine."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest
from tests.machine import deadline_seconds, factor

LEAST_SECONDS = 1.0
"""Folders whose tests took less together share one line of the report."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure before pytest-xdist starts its processes."""
    factor()


def pytest_report_header() -> str:
    return f"machine: deadlines are {factor():.1f} times those of a quick machine"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Multiply each test's limit by the factor: its mark, or `timeout` of pyproject.toml, not `--timeout`."""
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is not None:
            seconds, *options = mark.args
            item.add_marker(pytest.mark.timeout(deadline_seconds(seconds), *options, **mark.kwargs), append=False)
        elif config.getoption("timeout") is None:
            item.add_marker(pytest.mark.timeout(deadline_seconds(float(config.getini("timeout")))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds per folder: the sum over all processes of the run, fixtures included."""
    reports = [each for some in terminalreporter.stats.values() for each in some if isinstance(each, pytest.TestReport)]
    lines = folder_lines([(report.nodeid, report.duration) for report in reports])
    if lines:
        terminalreporter.section(f"seconds per folder (deadlines were multiplied by {factor():.1f})")
        for line in lines:
            terminalreporter.write_line(line)


def folder_lines(durations: list[tuple[str, float]]) -> list[str]:
    """One line per folder, the slowest first, from (node id, seconds) of each phase of each test."""
    seconds: dict[str, float] = defaultdict(float)
    for nodeid, duration in durations:
        seconds[str(PurePosixPath(nodeid.partition("::")[0]).parent)] += duration
    slow = sorted((spent, folder) for folder, spent in seconds.items() if spent >= LEAST_SECONDS)
    lines = [f"{spent:8.1f}  {folder}" for spent, folder in reversed(slow)]
    quick = [spent for spent in seconds.values() if spent < LEAST_SECONDS]
    if slow and quick:
        lines.append(f"{sum(quick):8.1f}  {len(quick)} other folders")
    return [*lines, f"{sum(seconds.values()):8.1f}  all together"] if slow else []
