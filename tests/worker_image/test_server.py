"""The agent's HTTP surface without an engine: what is refused, and that unknown is not zero."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request
from tests.worker_image.agents import free_address, worker_config

from fulcrum.api.names import Role
from fulcrum.api.worker import PATH_STARTED, LoadReport, SpeedCoefficients, Stage
from fulcrum_worker.roles import WorkerRole
from fulcrum_worker.server import make_app
from fulcrum_worker.state import WorkerState

Client = TestClient[Request, Application]


@pytest.fixture
async def state() -> AsyncIterator[WorkerState]:
    ip = free_address()
    async with ClientSession() as session:
        yield WorkerState(
            session=session,
            engine_url=f"http://{ip}:8000",
            side_channels=((ip, 5600),),
            role=WorkerRole(role=Role.PREFILL, epoch=3),
            pod_name="chat-cpu-0",
            engine_alive=True,
            warm=True,
        )


@pytest.fixture
async def client(state: WorkerState) -> AsyncIterator[Client]:
    async with TestClient(TestServer(make_app(worker_config(), state))) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/sleep", b'{"level":1,"roleEpoch":3}', 409),  # its engine was started without sleep mode
        ("POST", "/role", b"", 400),
        ("POST", "/role", b"{", 400),
        ("POST", "/role", b"\xff\xfe", 400),
        ("POST", "/role", b"[]", 400),
        ("POST", "/role", b'{"role":"prefill"}', 400),
        ("POST", "/role", b'{"role":"prefil","roleEpoch":4}', 400),
        ("POST", "/role", b'{"role":"decode","roleEpoch":"4"}', 400),
        # What a newer operator says beside it is ignored.
        ("POST", "/role", b'{"role":"decode","roleEpoch":4,"more":1}', 200),
        ("POST", "/role", b" " * 70_000, 413),
        ("POST", "/role", b'{"role":"decode","roleEpoch":2}', 409),
        ("POST", "/role", b'{"role":"decode","roleEpoch":3}', 409),
        ("POST", "/role", b'{"role":"prefill","roleEpoch":3}', 200),
        ("POST", "/role", b'{"role":"decode","roleEpoch":4}', 200),
        ("GET", "/role", b"", 405),
        ("GET", "/drain", b"", 405),
        ("GET", "/", b"", 404),
        ("GET", "/healthz", b"", 200),
        ("GET", "/readyz", b"", 503),
    ],
)
async def test_answers(client: Client, method: str, path: str, body: bytes, status: int) -> None:
    async with client.request(method, path, data=body) as response:
        assert response.status == status
        answer = await response.json()
    if status >= 400 and path != "/readyz":
        assert answer["error"]["code"] == status
        assert answer["error"]["message"]
    async with client.get("/healthz") as response:
        assert response.status == 200, "still serving"


async def test_unknown_is_not_zero(client: Client) -> None:
    async with client.get("/load") as response:
        answer = await response.json()
        report = msgspec.convert(answer, LoadReport)
    assert answer["running"] is None
    assert report == LoadReport(role=Role.PREFILL, role_epoch=3, ready=False, draining=False, stage=Stage.READY)
    assert not report.idle
    async with client.get("/metrics") as response:
        assert response.content_type == "text/plain"
        page = await response.text()
    assert "fulcrum_worker_kv_held_ratio" not in page
    assert "fulcrum_worker_speed_coefficient_seconds" not in page
    assert 'fulcrum_worker_info{accelerator="cpu",cluster="chat",model="chat",pool="cpu"} 1.0' in page


@pytest.mark.parametrize(("meant", "status"), [("chat-cpu-0", 200), ("chat-cpu-1", 421), ("", 200)])
async def test_a_role_for_another_pod_is_refused(client: Client, state: WorkerState, meant: str, status: int) -> None:
    body = {"role": "decode", "roleEpoch": 4}
    async with client.post("/role", json=body, headers={"x-fulcrum-pod": meant}) as response:
        assert response.status == status
    assert state.role.epoch == (4 if status == 200 else 3)
    async with client.get("/load") as response:
        assert response.headers["x-fulcrum-pod"] == "chat-cpu-0"


async def test_readyz_says_what_is_missing(client: Client, state: WorkerState) -> None:
    async with client.get("/readyz") as response:
        assert (await response.json())["reason"] == "the engine does not answer on /health"
    state.warm = False
    async with client.get("/readyz") as response:
        assert (await response.json())["reason"] == "the engine is starting: imports"
    state.engine_alive = False
    async with client.get("/readyz") as response:
        assert (await response.json())["reason"] == "the engine is not running"


async def test_a_dead_engine_is_not_healthy(client: Client, state: WorkerState) -> None:
    state.engine_alive = False
    async with client.get("/healthz") as response:
        assert response.status == 503
        assert (await response.json())["engineAlive"] is False


async def test_drain_counts_once_and_the_next_role_ends_it(client: Client, state: WorkerState) -> None:
    for _ in range(2):
        async with client.post("/drain") as response:
            assert response.status == 202
            assert await response.json() == {"draining": True, "idle": False}
    assert state.drains == 1
    async with client.post("/role", json={"role": "decode", "roleEpoch": 4}):
        pass
    assert not state.role.draining
    async with client.get("/metrics") as response:
        assert "fulcrum_worker_drains_total 1.0" in await response.text()


async def test_metrics_show_fitted_coefficients_and_role(client: Client, state: WorkerState) -> None:
    state.speed = SpeedCoefficients(
        prefill_a=0.5, prefill_b=0.25, prefill_c=0.0, decode_a=0.125, decode_b=0.0, decode_c=0.0
    )
    state.engine_start_seconds = 12.5
    async with client.get("/metrics") as response:
        page = await response.text()
    assert 'fulcrum_worker_speed_coefficient_seconds{coefficient="prefill_a"} 0.5' in page
    assert "fulcrum_worker_engine_start_seconds 12.5" in page
    assert 'fulcrum_worker_role{role="prefill"} 1.0' in page
    assert 'fulcrum_worker_role{role="draining"} 0.0' in page


async def test_the_startup_probe_succeeds_before_the_measurement(client: Client, state: WorkerState) -> None:
    async def ask(path: str) -> tuple[int, str]:
        async with client.get(path) as response:
            return response.status, (await response.json())["stage"]

    state.warm = False
    state.engine_stage = lambda: Stage.WEIGHTS
    assert await ask(PATH_STARTED) == (503, "weights")
    assert state.startup_probed
    assert not state.startup_told.is_set()
    state.engine_start_seconds = 31.0
    assert await ask("/readyz") == (503, "measuring")
    assert not state.startup_told.is_set()
    assert await ask(PATH_STARTED) == (200, "measuring")
    assert state.startup_told.is_set()
    state.warm = True
    assert (await ask(PATH_STARTED))[1] == "ready"


async def test_a_group_that_forms_names_the_node_it_waits_for(client: Client, state: WorkerState) -> None:
    state.warm = False
    state.miss("node 1 (c-p-0-0-1.c-p-0.ml) has no address: its Pod does not run yet")
    async with client.get("/readyz") as response:
        assert (await response.json())["reason"] == state.missing
    state.miss(None)
    async with client.get("/readyz") as response:
        assert (await response.json())["reason"] == "the engine is starting: imports"
