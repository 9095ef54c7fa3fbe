"""`fulcrum top --once` against a real API server, with workers and a gateway that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.controller.cluster import BIN, Agent, ApiServer, Cluster, eventually
from tests.machine import deadline_seconds

from fulcrum.api.names import PORT_GATEWAY_INSIDE, Role
from fulcrum.api.worker import LoadReport, WorkCounters
from fulcrum.controller.kube import EVENT, POD

pytestmark = pytest.mark.integration


def top(server: ApiServer, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(BIN / "fulcrum"), "top", "--once", "--interval", "0.4", *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=deadline_seconds(120),
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


async def make_pod(cluster: Cluster, name: str, labels: dict[str, str]) -> str:
    """A running Pod of the cluster; returns its address."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": {"fulcrum.dev/cluster": cluster.name, **labels},
        },
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    }
    assert await cluster.kube.create(POD, document) is not None
    await cluster.set_pod_status(name)
    address: str = (await cluster.pods())[name]["status"]["podIP"]
    return address


async def make_worker(cluster: Cluster, ordinal: int, role: str) -> str:
    return await make_pod(
        cluster,
        f"c-p-{ordinal}",
        {"app.kubernetes.io/component": "worker", "fulcrum.dev/role": role, "fulcrum.dev/pool": "p"},
    )


class BusyAgent(Agent):
    """An engine that has done more at every look."""

    looks = 0

    async def load(self, _: web.Request) -> web.Response:
        self.looks += 1
        done = WorkCounters(
            prompts=self.looks,
            prompt_tokens=1000 * self.looks,
            cached_tokens=0,
            prefill_seconds=0.1,
            decode_tokens=100 * self.looks,
            decode_seconds=1.0,
        )
        report = LoadReport(
            role=Role.PREFILL, role_epoch=0, ready=True, draining=False, running=7, waiting=2, kv_usage=0.25, work=done
        )
        return web.Response(body=msgspec.json.encode(report))


@asynccontextmanager
async def gateway_metrics(address: str) -> AsyncIterator[None]:
    looks = 0

    async def page(_: web.Request) -> web.Response:
        nonlocal looks
        looks += 1
        return web.Response(
            text=f'fulcrum_gateway_arrivals_total{{class="default"}} {20 * looks}\n'
            f'fulcrum_gateway_requests_total{{code="429",reason="Overloaded"}} {5 * looks}\n'
            f'fulcrum_gateway_requests_total{{code="200",reason=""}} {15 * looks}\n'
        )

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, PORT_GATEWAY_INSIDE).start()
    try:
        yield
    finally:
        await runner.cleanup()


def set_status(cluster: Cluster, status: dict[str, Any]) -> None:
    patch = msgspec.json.encode({"status": status}).decode()
    cluster.server.kubectl(
        "patch", "ic", cluster.name, "-n", cluster.namespace, "--subresource=status", "--type=merge", "-p", patch
    )


def event_of(cluster: Cluster, uid: str) -> dict[str, Any]:
    about = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "name": cluster.name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"c.{uid[:8]}", "namespace": cluster.namespace},
        "involvedObject": {**about, "namespace": cluster.namespace},
        "reason": "LoadShifted",
        "message": f"About {uid[:8]}.",
        "type": "Normal",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


def in_time(out: str) -> bool:
    """The played worker and gateway were asked twice, some 0.4 s apart."""
    tokens = re.search(r"^c-p-0 +prefill +7 +2 +25% +([\d.]+)", out, re.MULTILINE)
    requests = re.search(r"requests +([\d.]+)/s now", out)
    return bool(tokens and requests and 500 < float(tokens[1]) < 2600 and 10 < float(requests[1]) < 52)


async def test_loads_rates_and_decisions_are_shown(cluster: Cluster) -> None:
    await cluster.apply()
    set_status(
        cluster,
        {
            "ratio": "1P:1D",
            "ready": "2/2",
            "roles": {
                "prefill": {"desired": 1, "ready": 1, "draining": 0},
                "decode": {"desired": 1, "ready": 1, "draining": 0},
            },
            "ttft": {"p50": "120ms", "p90": "1.5s"},
        },
    )
    uid = (await cluster.get())["metadata"]["uid"]
    for about in (uid, "an-earlier-cluster-of-the-same-name"):
        await cluster.kube.create(EVENT, event_of(cluster, about))
    async with AsyncExitStack() as stack:
        busy = await make_worker(cluster, 0, "prefill")
        await make_worker(cluster, 1, "decode")
        gateway = await make_pod(cluster, "c-gateway-x", {"app.kubernetes.io/component": "gateway"})
        await stack.enter_async_context(BusyAgent().serve(busy))
        await stack.enter_async_context(gateway_metrics(gateway))
        out = ""
        for _ in range(6):  # on a busy machine an answer may be late, or the looks far apart
            if not in_time(out):
                out = await asyncio.to_thread(top, cluster.server, "c", "-n", cluster.namespace)
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "1P:1D now, 1P:1D target" in lines["ratio"]
    assert "TTFT p50 120ms p90 1.5s of 2s" in lines["latency"]
    worker = lines["c-p-0"].split()
    assert worker[1:5] == ["prefill", "7", "2", "25%"]
    assert 500 < float(worker[5]) < 2600  # 1000 tokens in some 0.4 s and more
    assert lines["c-p-1"].split()[1:7] == ["decode", "-", "-", "-", "-", "-"]
    assert "1 of 2 ready workers cannot be asked" in out
    requests = re.search(r"requests +([\d.]+)/s now", out)
    assert requests is not None
    assert 10 < float(requests[1]) < 52
    turned_away = re.search(r"([\d.]+)/s Overloaded", lines["turned"])
    assert turned_away is not None
    assert float(turned_away[1]) == pytest.approx(float(requests[1]) / 4, abs=0.1)
    assert f"LoadShifted  About {uid[:8]}." in out
    assert "an-earli" not in out


async def test_the_only_cluster_need_not_be_named(cluster: Cluster) -> None:
    missing = await asyncio.to_thread(top, cluster.server, "nobody", "-n", cluster.namespace, code=1)
    assert f"there is no InferenceCluster nobody in namespace {cluster.namespace}" in missing
    await cluster.apply()
    assert "No worker yet." in await asyncio.to_thread(top, cluster.server, "-n", cluster.namespace)
    cluster.name = "d"
    await cluster.apply()
    which = await asyncio.to_thread(top, cluster.server, "-n", cluster.namespace, code=1)
    assert f"say which one: c -n {cluster.namespace}, d -n {cluster.namespace}" in which


async def test_without_an_api_server_it_says_so(tmp_path: Any, api_server: ApiServer) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(re.sub(r"server: .*", "server: https://127.0.0.1:1", api_server.kubeconfig.read_text()))
    out = await asyncio.to_thread(top, api_server, "--kubeconfig", str(config), code=1)
    assert "the API server does not answer" in out


async def test_it_goes_on_until_interrupted(cluster: Cluster) -> None:
    await cluster.apply()
    terminal, end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(str(BIN / "fulcrum"), "top", "-n", cluster.namespace, "--interval", "0.2"),
        env={**os.environ, "KUBECONFIG": str(cluster.server.kubeconfig), "TERM": "xterm", "COLUMNS": "100"},
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    os.set_blocking(terminal, False)
    shown = b""

    async def frames(text: bytes, count: int) -> None:
        async def there() -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError):
                shown += os.read(terminal, 65536)
            return shown.count(text) >= count

        await eventually(there)

    try:
        await frames(b"No worker yet.", 3)
        await make_worker(cluster, 0, "prefill")
        await frames(b"c-p-0", 1)
        process.send_signal(signal.SIGINT)

        async def ended() -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError, OSError):  # read on: it could not print its end otherwise
                shown += os.read(terminal, 65536)
            return process.returncode is not None

        await eventually(ended)
        assert process.returncode == 0
        assert b"Traceback" not in shown
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(terminal)
