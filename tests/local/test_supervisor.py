"""When somebody else has the API server's port, everything is started anew with another one; Pods run on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from tests.machine import deadline_seconds

from fulcrum.kube import Api, ApiFailure
from fulcrum_local.home import Home
from fulcrum_local.kubelet.processes import MARK_STATE, kill_marked

Json = dict[str, Any]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(root=tmp_path / "home")
    with (tmp_path / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fulcrum_local.supervisor", str(found.root)],
            stdout=log,
            stderr=log,
            env={**os.environ, "FULCRUM_HOME": str(found.root)},
        )
    try:
        yield found
    finally:
        process.terminate()
        process.wait(deadline_seconds(60))
        kill_marked({MARK_STATE: str(found.kubelet)})


async def until(what: str, check: Callable[[], Any], *, seconds: float = 180) -> Any:
    async with asyncio.timeout(deadline_seconds(seconds)):
        while True:
            with contextlib.suppress(ApiFailure, OSError, KeyError, IndexError, TypeError, ValueError):
                found = check()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
            await asyncio.sleep(0.05)
    raise AssertionError(what)


def port_of(home: Home) -> int:
    server = yaml.safe_load(home.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return urlsplit(server).port or 0


async def take(port: int) -> socket.socket:
    """Listen there as soon as it is free."""
    async with asyncio.timeout(deadline_seconds(30)):
        while True:
            other = socket.socket()
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                other.close()
                await asyncio.sleep(0)
            else:
                other.listen()
                return other


async def test_all_are_started_anew_with_another_port_and_pods_run_on(home: Home) -> None:
    await until("a kubeconfig", home.kubeconfig.exists)
    api = Api(home.kubeconfig)
    lives = {"name": "main", "image": "none", "command": ["python3", "-c", "import time; print('up'); time.sleep(1e6)"]}
    document = {"metadata": {"name": "lives"}, "spec": {"containers": [lives]}}
    await until("a node", lambda: api.get("/api/v1/nodes/local"))
    await api.create(PODS, document)

    async def running(name: str) -> str | None:
        status: Json = (await api.get(f"{PODS}/{name}"))["status"]
        container: Json = status["containerStatuses"][0]
        return str(container["containerID"]) if "running" in container["state"] else None

    container = await until("a Pod", lambda: running("lives"))
    port = port_of(home)
    pids = {name: entry["pid"] for name, entry in json.loads(home.supervisor.read_text()).items()}
    os.kill(pids["apiserver"], signal.SIGKILL)
    with contextlib.closing(await take(port)):
        moved = await until("another port", lambda: (found := port_of(home)) != port and found)
        log = (home.logs / "apiserver.log").read_text()
        assert f"cannot listen on 127.0.0.1:{port}, the port of the last run" in log
        await until("the others' end", lambda: not any(psutil.pid_exists(pids[n]) for n in ("controllers", "kubelet")))
        # This client has not been restarted, and finds the server by its kubeconfig.
        await until("an answer", lambda: api.get("/api/v1/nodes/local"))
        assert await running("lives") == container
        # Scheduler and kubelet work, so the controllers and the kubelet have the new port, too.
        await api.create(PODS, {**document, "metadata": {"name": "second"}})
        await until("another Pod", lambda: running("second"))
        assert port_of(home) == moved
    await api.close()
