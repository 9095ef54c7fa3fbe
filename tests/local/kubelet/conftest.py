"""A real API server and a real kubelet as processes; Pods are small programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.machine import deadline_seconds

from fulcrum.kube import Api, ApiError
from fulcrum_local.kubelet.processes import MARK_STATE, kill_marked, marked

Json = dict[str, Any]
NODE = "test-node"


def program(*args: str, log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "fulcrum.cli.app", *args],
            stdout=file,
            stderr=file,
            env={**os.environ, **(env or {})},
        )


class World:
    """One API server and one kubelet, with what tests ask of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.state = directory / "kubelet"
        # Of its own, so that nothing else on this machine has these addresses.
        self.cidr = f"127.{random.randint(100, 250)}.0.0/16"
        self.kubelet: subprocess.Popen[bytes] | None = None
        self.server = program(
            "apiserver",
            f"--state-dir={directory / 'apiserver'}",
            f"--kubeconfig-out={self.kubeconfig}",
            log=directory / "apiserver.log",
        )
        deadline = time.monotonic() + deadline_seconds(120)
        while not self.kubeconfig.exists():
            assert time.monotonic() < deadline, self.log("apiserver")
            assert self.server.poll() is None, self.log("apiserver")
            time.sleep(0.05)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-4000:]

    def start_kubelet(self, *options: str, env: dict[str, str] | None = None) -> None:
        self.kubelet = program(
            "kubelet",
            f"--kubeconfig={self.kubeconfig}",
            f"--node-name={NODE}",
            f"--state-dir={self.state}",
            f"--pod-cidr={self.cidr}",
            *options,
            log=self.directory / "kubelet.log",
            env=env,
        )

    def stop_kubelet(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.kubelet is not None:
            self.kubelet.send_signal(number)
            self.kubelet.wait(deadline_seconds(60))
            self.kubelet = None

    def close(self) -> None:
        self.stop_kubelet()
        kill_marked({MARK_STATE: str(self.state)})
        self.server.terminate()
        self.server.wait(deadline_seconds(60))

    def processes(self, uid: str) -> list[int]:
        """Pids of a Pod, shims included."""
        return [item.pid for item in marked({"FULCRUM_POD_UID": uid, MARK_STATE: str(self.state)})]


class Client:
    """Pods as tests see them."""

    def __init__(self, world: World, api: Api) -> None:
        self.world = world
        self.api = api

    async def node_ready(self, *, seconds: float = 120) -> None:
        """Wait until the kubelet has registered its Node."""
        deadline = time.monotonic() + deadline_seconds(seconds)
        while True:
            with contextlib.suppress(ApiError):
                await self.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + NODE)
                return
            assert time.monotonic() < deadline, self.world.log("kubelet")
            await asyncio.sleep(0.05)

    async def make(self, name: str, *containers: Json, **spec: Any) -> Json:
        return await self.api.create(
            "/api/v1/namespaces/default/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 3, "containers": list(containers), **spec},
            },
        )

    async def get(self, name: str) -> Json:
        return await self.api.get(f"/api/v1/namespaces/default/pods/{name}")

    async def until(self, name: str, wanted: Callable[[Json], Any], *, seconds: float = 120) -> Json:
        """The Pod as soon as `wanted` holds. A missing status is an empty one."""
        deadline = time.monotonic() + deadline_seconds(seconds)
        while True:
            pod = await self.get(name)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                if wanted(pod):
                    return pod
            assert time.monotonic() < deadline, f"{pod['status']}\n{self.world.log('kubelet')}"
            await asyncio.sleep(0.02)

    async def delete(self, name: str, *, seconds: float = 120, grace_seconds: int | None = None) -> None:
        """Delete and wait until it is gone."""
        await self.api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_seconds=grace_seconds)
        await self.gone(name, seconds=seconds)

    async def gone(self, name: str, *, seconds: float = 120) -> None:
        """Wait until no Pod of that name is listed."""
        field = {"fieldSelector": f"metadata.name={name}"}
        deadline = time.monotonic() + deadline_seconds(seconds)
        while (await self.api.get("/api/v1/namespaces/default/pods", field))["items"]:
            assert time.monotonic() < deadline, self.world.log("kubelet")
            await asyncio.sleep(0.02)

    async def poll(self, check: Callable[[], Any], *, seconds: float = 120) -> None:
        """Wait until `check` holds."""
        deadline = time.monotonic() + deadline_seconds(seconds)
        while not check():
            assert time.monotonic() < deadline, self.world.log("kubelet")
            await asyncio.sleep(0.02)

    async def process(self, uid: str, name: str) -> int:
        """Pid of a Pod's process of that name, once it is there."""
        found: list[int] = []

        def look() -> bool:
            for pid in self.world.processes(uid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if psutil.Process(pid).name() == name:
                        found.append(pid)
            return bool(found)

        await self.poll(look)
        return found[0]

    async def printed(self, name: str, text: str) -> None:
        """Wait until the Pod's log has `text`."""
        deadline = time.monotonic() + deadline_seconds(120)
        while True:
            status = (await self.get(name))["status"].get("containerStatuses") or [{}]
            if status[0].get("containerID") and text in await self.logs(name, container=status[0]["name"]):
                return
            assert time.monotonic() < deadline, self.world.log("kubelet")
            await asyncio.sleep(0.05)

    async def logs(self, name: str, **params: str) -> str:
        path = f"/api/v1/namespaces/default/pods/{name}/log"
        return b"".join([chunk async for chunk in self.api.stream(path, params)]).decode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    try:
        world.start_kubelet("--no-taint", "--pass-env=PASSED", env={"PASSED": "on", "SECRET_OF_HOST": "no"})
        yield world
    finally:
        world.close()


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    api = Api(world.kubeconfig)
    client = Client(world, api)
    await client.node_ready()
    yield client
    await api.close()
