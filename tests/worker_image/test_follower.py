"""A follower: it ends with its part of the engine, and its part of the engine with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.controller.cluster import eventually
from tests.machine import deadline_seconds

from fulcrum.api.worker import EXIT_BAD_CONFIG, EXIT_ENGINE_DIED, EXIT_ENGINE_NOT_STARTED
from fulcrum_worker.config import BadConfigError
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.engine_ranks import lost_lines
from fulcrum_worker.follower import run_follower

pytestmark = pytest.mark.integration


def command(*argv: str) -> EngineCommand:
    return EngineCommand(argv=argv, environment=dict(os.environ))


async def test_it_ends_when_its_part_of_the_engine_does_and_says_what_that_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = await run_follower(command(sys.executable, "-c", "print('NCCL error: unhandled'); raise SystemExit(3)"))
    assert code == EXIT_ENGINE_DIED
    said = capsys.readouterr().err
    assert "ended with code 3" in said
    assert "NCCL error: unhandled" in said


async def test_a_lost_rank_is_named_and_a_refused_configuration_is_no_end_of_an_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (lost,) = lost_lines([("EngineCore_DP9", -9)])
    assert (
        await run_follower(command(sys.executable, "-c", f"print({lost!r}); raise SystemExit(1)")) == EXIT_ENGINE_DIED
    )
    assert capsys.readouterr().err.startswith("rank 9 was killed by SIGKILL; vLLM ended with code 1.")
    refused = f"print('fulcrum: refused: too dense'); raise SystemExit({EXIT_BAD_CONFIG})"
    with pytest.raises(BadConfigError, match="too dense"):
        await run_follower(command(sys.executable, "-c", refused))


async def test_an_engine_that_cannot_be_executed_is_said() -> None:
    assert await run_follower(command("/no/such/python")) == EXIT_ENGINE_NOT_STARTED


async def test_sigterm_ends_both(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    program = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    running = asyncio.create_task(run_follower(command(sys.executable, "-c", program)))

    async def is_running() -> bool:
        return started.exists() and bool(started.read_text())

    await eventually(is_running, seconds=30)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, deadline_seconds(30)) == 0
    assert not psutil.pid_exists(int(started.read_text()))
