"""The agent puts an engine to sleep and wakes it: against vLLM's own routes, executor and engine core.

vLLM sleeps on GPUs only, so what its executor asks of the GPUs is written down and not run (`sleep_program.py`).
"""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import vllm_source
from tests.machine import deadline_seconds, wait_until
from tests.worker_image.agents import free_address

from fulcrum.api.names import PORT_ENGINE, Role
from fulcrum.api.worker import EngineSleepState, SleepRequest
from fulcrum_worker.engine_access import ENV_AGENT_KEY, SERVED_PATHS
from fulcrum_worker.engine_metrics import EngineMetrics
from fulcrum_worker.engine_sleep import EngineSleep
from fulcrum_worker.roles import WorkerRole

KEY, TOKEN = "the-agents-key", "the-clusters-token"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
DRAINING = WorkerRole(role=Role.DRAINING, epoch=3)
IDLE = EngineMetrics(running=0, waiting=0, kv_usage=0.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `sleep_program.py`: importing vLLM takes seconds, so all tests share one."""
    ip, log = free_address(), tmp_path_factory.mktemp("sleep") / "log"
    environment = {**os.environ, ENV_AGENT_KEY: KEY, "VLLM_API_KEY": TOKEN}
    program = [sys.executable, str(Path(__file__).with_name("sleep_program.py")), ip, str(PORT_ENGINE)]
    with log.open("wb") as output, subprocess.Popen(program, env=environment, stdout=output, stderr=output) as process:
        try:
            listens(ip, process, log)
            yield f"http://{ip}:{PORT_ENGINE}"
        finally:
            process.terminate()


def listens(ip: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def connects() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        with socket.socket() as client:
            return client.connect_ex((ip, PORT_ENGINE)) == 0

    wait_until(connects, seconds=60, what=lambda: log.read_text(errors="replace"))


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(deadline_seconds(20)):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Agent:
    """The keeper of an engine's sleep, and what the agent knows of its worker."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> None:
        self.session, self.url = session, url
        self.role, self.metrics = DRAINING, IDLE
        self.keeper = EngineSleep(
            session,
            url,
            KEY,
            timeout_seconds=deadline_seconds(timeout_seconds),
            metrics=self._scrape,
            role=lambda: self.role,
            serves=lambda: True,
        )

    async def _scrape(self) -> EngineMetrics:
        return self.metrics

    def want(self, level: int) -> str | None:
        return self.keeper.want(SleepRequest(level=level, role_epoch=self.role.epoch))

    async def becomes(self, state: EngineSleepState) -> None:
        await eventually(lambda: self.keeper.state == state)

    async def record(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/v1/record") as answer:
            return dict(await answer.json())


@asynccontextmanager
async def agent(url: str, *, timeout_seconds: float = 60.0, **wrong: Any) -> AsyncIterator[Agent]:
    """An agent beside an engine that does some of it `wrong`."""
    async with aiohttp.ClientSession(headers=RIGHT) as session:
        async with session.post(f"{url}/v1/begin", json=wrong) as answer:
            assert answer.status == 200
        made = Agent(session, url, timeout_seconds=timeout_seconds)
        running = asyncio.create_task(made.keeper.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("level", "calls"),
    [
        (1, [["sleep", {"level": 1}, True], ["wake_up", {"tags": None}, True]]),
        (
            2,
            [
                ["sleep", {"level": 2}, True],
                ["wake_up", {"tags": ["weights"]}, True],
                ["reload_weights", {}, True],
                ["wake_up", {"tags": ["kv_cache"]}, True],
            ],
        ),
    ],
)
async def test_an_engine_sleeps_and_wakes(url: str, level: int, calls: list[Any]) -> None:
    async with agent(url) as worker:
        assert worker.want(level) is None
        await worker.becomes(EngineSleepState.ASLEEP)
        found = await worker.record()
        assert found["paused"] == [["wait", True]], "nothing that runs is cut, and no prefix outlives its KV"
        worker.want(level)
        assert worker.want(0) is None
        await worker.becomes(EngineSleepState.AWAKE)
        found = await worker.record()
        assert found["calls"] == calls, "the scheduler stood still until all memory was back"
        assert found["still"] is False


async def test_a_role_wakes_it_and_a_late_request_does_not_put_it_to_sleep(url: str) -> None:
    async with agent(url) as worker:
        late = SleepRequest(level=1, role_epoch=worker.role.epoch)
        worker.keeper.want(late)
        await worker.becomes(EngineSleepState.ASLEEP)
        worker.role = WorkerRole(role=Role.MIXED, epoch=4)
        await worker.becomes(EngineSleepState.AWAKE)
        assert "only a worker that drains" in (worker.keeper.want(late) or "")
        worker.role = WorkerRole(role=Role.DRAINING, epoch=5)
        assert worker.keeper.want(late) is not None
        assert "must be one of 0, 1, 2" in (worker.want(3) or "")
        assert worker.keeper.state == EngineSleepState.AWAKE


async def test_kv_that_a_peer_has_not_pulled_keeps_it_awake(url: str) -> None:
    async with agent(url) as worker:
        worker.metrics = EngineMetrics(running=0, waiting=0, kv_usage=0.2)
        worker.want(1)
        await worker.becomes(EngineSleepState.FALLING_ASLEEP)
        assert (await worker.record())["calls"] == []
        worker.metrics = IDLE
        await worker.becomes(EngineSleepState.ASLEEP)


async def test_an_engine_that_cannot_sleep_serves_on(url: str) -> None:
    async with agent(url, pauses=False) as worker:
        worker.want(1)
        await worker.becomes(EngineSleepState.FALLING_ASLEEP)
        await worker.becomes(EngineSleepState.AWAKE)
        assert not worker.keeper.failed.is_set()


@pytest.mark.parametrize("wrong", [{"refuses": "wake_up"}, {"hangs": True}, {"refuses": "reload_weights"}])
async def test_an_engine_that_does_not_wake_has_failed(url: str, wrong: dict[str, Any]) -> None:
    async with agent(url, timeout_seconds=3.0, **wrong) as worker:
        worker.want(2)
        await worker.becomes(EngineSleepState.ASLEEP)
        worker.want(0)
        async with asyncio.timeout(deadline_seconds(20)):
            await worker.keeper.failed.wait()
        assert worker.keeper.failure.startswith("vLLM did not wake up: ")
        assert (await worker.record())["still"] is True, "it computes nothing without its weights"


async def test_the_routes_are_closed_to_all_but_the_agent(url: str) -> None:
    async with agent(url) as worker, aiohttp.ClientSession() as session:
        key = {"X-Fulcrum-Agent-Key": KEY}
        for headers, status in ((RIGHT, 404), ({**RIGHT, "X-Fulcrum-Agent-Key": "x"}, 404), (key, 401)):
            for path in ("/sleep", "/sleep/", "//sleep", "/collective_rpc", "/wake_up", "/openapi.json"):
                async with session.post(f"{url}{path}", headers=headers, json={"method": "reload_weights"}) as answer:
                    assert answer.status == status, (path, headers)
        async with session.get(f"{url}/is_sleeping", headers={**RIGHT, **key}) as answer:
            assert await answer.json() == {"is_sleeping": False}
        assert (await worker.record())["calls"] == []


def paths(folder: str) -> set[str]:
    """Paths of the routes in vLLM's files below a folder."""
    found = set()
    for file in (vllm_source.root() / folder).rglob("api_router.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if isinstance(node.func.value, ast.Name) and node.func.value.id == "router":
                    assert isinstance(first, ast.Constant)
                    found.add(str(first.value))
    return found


@pytest.mark.vllm_facts
def test_what_vllm_says_of_its_sleep_mode() -> None:
    dev, rl = paths("entrypoints/serve/dev"), paths("entrypoints/rl")
    assert {"/sleep", "/wake_up", "/is_sleeping", "/collective_rpc"} <= dev
    assert "/update_weights" in rl
    opened = {path for path in dev | rl if path in SERVED_PATHS or path.startswith("/v1/")}
    assert not opened, "development routes that gateways could reach"
    routers = vllm_source.code("entrypoints/launchers/api_server/routers.py", "register_api_routers")
    assert "if envs.VLLM_SERVER_DEV_MODE:" in routers
    assert "CUDA, PlatformEnum.ROCM, PlatformEnum.XPU" in vllm_source.code("platforms/interface.py")
    assert "--enable-sleep-mode" in vllm_source.strings("engine/arg_utils.py")
    assert "SLEEP_TAGS = frozenset(('weights', 'kv_cache'))" in vllm_source.code("v1/executor/abstract.py")
    worker = vllm_source.code("v1/worker/gpu_worker.py", "Worker")
    assert "def reload_weights(self" in worker


@pytest.mark.vllm_facts
def test_nixl_registers_no_memory_anew_after_a_wake() -> None:
    """Why pools that exchange KV do not sleep at depth Engines: a wake maps other memory at the same addresses."""
    folder = vllm_source.root() / "distributed/kv_transfer/kv_connector/v1/nixl"
    for file in folder.glob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert "def wake_up" not in source
        assert "sleep_mode" not in source
    assert "invalidating any pinned/registered KV memory" in (vllm_source.root() / "config/vllm.py").read_text()
