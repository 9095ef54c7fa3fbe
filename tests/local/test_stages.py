"""Stages of workers that start, as `fulcrum up` prints them; agents are those of the worker image."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from tests.worker_image.agents import free_address, worker_config

from fulcrum.api.names import ANNOTATION_PORTS, PORT_AGENT, Role
from fulcrum.api.ports import AgentAddress, agent_of
from fulcrum.api.worker import Stage
from fulcrum.telemetry import Agents
from fulcrum_local.stages import USUAL_FILE, Stages, start_seconds, usual_seconds
from fulcrum_worker.roles import WorkerRole
from fulcrum_worker.server import make_app
from fulcrum_worker.state import WorkerState

BEGUN = "2026-01-01T00:00:00Z"


def pod(name: str, ip: str | None, *, ready_at: str | None = None, restarts: int = 0) -> dict[str, Any]:
    status: dict[str, Any] = {"startTime": BEGUN, "containerStatuses": [{"restartCount": restarts}]}
    status |= {"podIP": ip} if ip else {}
    if ready_at is not None:
        status["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": ready_at}]
    return {"metadata": {"name": name}, "status": status}


@pytest.fixture
async def worker() -> AsyncIterator[WorkerState]:
    ip = free_address()
    async with ClientSession() as session:
        role = WorkerRole(role=Role.MIXED, epoch=1)
        state = WorkerState(session=session, engine_url=f"http://{ip}:8000", side_channels=((ip, 5600),), role=role)
        async with TestServer(make_app(worker_config(), state), host=ip, port=PORT_AGENT):
            yield state


async def test_each_stage_is_said_once(worker: WorkerState, tmp_path: Path) -> None:
    ip = worker.side_channels[0][0]
    (tmp_path / USUAL_FILE).write_text("60.4")
    stages = Stages(root=tmp_path)
    # One without an address, and one whose agent does not answer: the others go on.
    pods = [pod("auto-0", ip), pod("auto-1", None), pod("auto-2", free_address())]
    (line,) = await stages.changes(pods)
    assert line.startswith("auto-0: imports (after ")
    assert line.endswith(" s; usually ready after about 60 s)")
    assert await stages.changes(pods) == []
    worker.engine_stage = lambda: Stage.KV_CACHE
    assert [line.split(" (")[0] for line in await stages.changes(pods)] == ["auto-0: KV cache"]
    worker.warm = True
    assert await stages.changes(pods) == [], "its Pod is not ready yet"
    pods[0] = pod("auto-0", ip, ready_at="2026-01-01T00:01:10Z")
    assert await stages.changes(pods) == ["auto-0: ready (after 70 s)"]
    assert await stages.changes(pods) == []
    stages.remember()
    assert usual_seconds(tmp_path) == 70.0


async def test_two_workers_on_the_network_of_one_node_are_told_apart_by_their_ports(tmp_path: Path) -> None:
    ip, pods = free_address(), []
    async with ClientSession() as session, contextlib.AsyncExitStack() as stack:
        for number, stage in enumerate((Stage.WEIGHTS, Stage.KV_CACHE)):
            state = WorkerState(
                session=session, engine_url=f"http://{ip}:8000", role=WorkerRole(role=Role.MIXED, epoch=1)
            )
            state.engine_stage = lambda stage=stage: stage
            port = 9001 + number
            await stack.enter_async_context(TestServer(make_app(worker_config(), state), host=ip, port=port))
            pods.append(pod(f"c-p-{number}", ip))
            pods[-1]["metadata"]["annotations"] = {ANNOTATION_PORTS: f'{{"agent":{port}}}'}
        said = [line.split(" (")[0] for line in await Stages(root=tmp_path).changes(pods)]
        assert said == ["c-p-0: weights", "c-p-1: KV cache"]
        async with Agents(deadline_seconds=60.0) as agents:
            loads = await agents.loads({each["metadata"]["name"]: address_of(each) for each in pods})
        assert [load.stage for load in loads.values() if load is not None] == [Stage.WEIGHTS, Stage.KV_CACHE]


def address_of(pod: dict[str, Any]) -> AgentAddress:
    agent = agent_of(pod)
    assert agent is not None
    return agent


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (pod("a", None), None),
        (pod("a", None, ready_at="2026-01-01T00:00:31Z"), 31.0),
        (pod("a", None, ready_at="2026-01-01T00:00:31Z", restarts=1), None),
        ({"metadata": {"name": "a"}}, None),
    ],
)
def test_how_long_a_start_took(which: dict[str, Any], expected: float | None) -> None:
    assert start_seconds(which) == expected


@pytest.mark.parametrize("content", [None, "", "{}", "0", "[1]"])
def test_an_unknown_start_is_not_zero(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / USUAL_FILE).write_text(content)
    assert usual_seconds(tmp_path) is None
