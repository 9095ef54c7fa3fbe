"""Exit codes of the agent where vLLM does not come up; a program that is no engine stands in for a stuck one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.machine import deadline_seconds
from tests.worker_image.agents import free_address, worker_config

from fulcrum.api.worker import EXIT_BAD_CONFIG, EXIT_ENGINE_NOT_STARTED, WorkerConfig
from fulcrum_worker.agent import run_agent
from fulcrum_worker.config import BadConfigError, PodIdentity
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.engine_ranks import DENSE, lost_lines


def command(program: str) -> EngineCommand:
    return EngineCommand(argv=(sys.executable, "-u", "-c", program), environment=dict(os.environ))


async def run(config: WorkerConfig, engine: EngineCommand, ip: str | None = None) -> int:
    pod = PodIdentity(ip=ip or free_address(), name="chat-cpu-0", namespace="default")
    return await asyncio.wait_for(run_agent(config, pod, engine), deadline_seconds(120))


async def test_an_engine_that_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    code = await run(worker_config(), command("print('no such model'); raise SystemExit(1)"))
    assert code == EXIT_ENGINE_NOT_STARTED
    assert capfd.readouterr().out.endswith(
        "vLLM ended with exit code 1 before it was ready; its last lines:\nno such model\n"
    )


async def test_a_rank_that_is_lost_at_the_start_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    (said,) = lost_lines([("EngineCore_DP3", -9)])
    assert await run(worker_config(), command(f"print({said!r}); raise SystemExit(1)")) == EXIT_ENGINE_NOT_STARTED
    reason = "rank 3 was killed by SIGKILL; vLLM ended with exit code 1 before it was ready"
    assert capfd.readouterr().out.endswith(f"{reason}; its last lines:\n{said}\n")


async def test_what_an_engine_refuses_is_a_bad_configuration() -> None:
    said = f"fulcrum: refused: {DENSE}"
    with pytest.raises(BadConfigError, match=r"the model is dense .* raise spec.pools.*workers"):
        await run(worker_config(), command(f"print({said!r}); print('more'); raise SystemExit({EXIT_BAD_CONFIG})"))


async def test_an_engine_that_never_answers(capfd: pytest.CaptureFixture[str]) -> None:
    # A shell, which has said its line long before the time is up.
    loading = EngineCommand(argv=("/bin/sh", "-c", "echo loading; exec sleep 600"), environment={})
    code = await run(worker_config(start_timeout_seconds=3.0), loading)
    assert code == EXIT_ENGINE_NOT_STARTED
    end = capfd.readouterr().out
    assert "vLLM made no progress for 3 s (stage imports): the engine does not answer on /health" in end
    assert end.endswith("its last lines:\nloading\n")


@pytest.mark.parametrize(
    "work",
    ["print('shard', 'abcdefghijklmnopqrstuvwxyz'[i])", "os.write(file, bytes(2 << 20)); os.lseek(file, 0, 0)"],
    ids=["says something new", "moves bytes"],
)
async def test_an_engine_that_gets_on_is_waited_for(
    work: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        f"import os, time\nfile = os.open({str(tmp_path / 'weights')!r}, os.O_RDWR | os.O_CREAT)\n"
        f"for i in range(12):\n    {work}\n    time.sleep(0.5)\nprint('loaded')\ntime.sleep(600)"
    )
    code = await run(worker_config(start_timeout_seconds=4.0), command(program))
    assert code == EXIT_ENGINE_NOT_STARTED
    assert "loaded" in capfd.readouterr().out, "six seconds of work were waited for"


async def test_an_engine_that_cannot_be_executed(capfd: pytest.CaptureFixture[str]) -> None:
    code = await run(worker_config(), EngineCommand(argv=("/nonexistent/python",), environment={}))
    assert code == EXIT_ENGINE_NOT_STARTED
    assert "vLLM could not be executed" in capfd.readouterr().out


async def test_sigterm_while_starting_ends_well() -> None:
    ip = free_address()
    agent = asyncio.create_task(run(worker_config(), command("import time; time.sleep(600)"), ip))
    statuses = await asyncio.to_thread(poll_while_starting, ip)
    assert statuses == {"/healthz": 200, "/readyz": 503, "/load": 200}
    os.kill(os.getpid(), signal.SIGTERM)
    assert await agent == 0


def poll_while_starting(ip: str) -> dict[str, int]:
    statuses: dict[str, int] = {}
    for path in ("/healthz", "/readyz", "/load"):
        while path not in statuses:
            try:
                with urllib.request.urlopen(f"http://{ip}:8001{path}", timeout=deadline_seconds(5)) as response:
                    statuses[path] = response.status
            except urllib.error.HTTPError as error:
                with error:
                    statuses[path] = error.code
            except OSError:
                time.sleep(0.02)
    return statuses
