"""The real embedded API server in a process of its own, the real controllers in this one; a hand plays the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds

from fulcrum.kube import MERGE, Api, ApiError
from fulcrum_local.controllers.nodes import NodeTimes
from fulcrum_local.controllers.pods import is_ready
from fulcrum_local.controllers.resources import NODES, PODS, Json, Resource, key_of
from fulcrum_local.controllers.runner import run_controllers

_START_SECONDS = 60
_WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("apiserver")
    kubeconfig, log = state / "kubeconfig", state / "log"
    command = [sys.executable, "-c", "from fulcrum.cli.app import main; main()", "apiserver"]
    options = ["--state-dir", str(state / "state"), "--kubeconfig-out", str(kubeconfig)]
    with log.open("wb") as output, subprocess.Popen([*command, *options], stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + deadline_seconds(_START_SECONDS)
            while not kubeconfig.exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield kubeconfig
        finally:
            process.terminate()


class World:
    """A namespace of its own in the cluster, and the hand that plays the kubelet."""

    def __init__(self, api: Api, kubeconfig: Path, namespace: str) -> None:
        self.api, self.kubeconfig, self.namespace = api, kubeconfig, namespace
        self._stop: asyncio.Event | None = None
        self._running: asyncio.Task[None] | None = None

    async def start_controllers(self, node_times: NodeTimes | None = None) -> None:
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(run_controllers(self.kubeconfig, self._stop, node_times))

    async def stop_controllers(self) -> None:
        if self._stop is not None and self._running is not None:
            self._stop.set()
            await self._running
            self._stop = self._running = None
            with warnings.catch_warnings():  # asyncio 3.11 leaks a socket whose connect is cancelled
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()

    async def create(self, resource: Resource, name: str, body: Json | None = None, **metadata: Any) -> Json:
        named = {"name": name, **metadata}
        if resource.namespaced:
            named["namespace"] = self.namespace
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": named, **(body or {})}
        return await self.api.create(resource.collection(self.namespace), obj)

    async def get(self, resource: Resource, name: str) -> Json | None:
        try:
            return await self.api.get(resource.path((self.namespace, name)))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, resource: Resource) -> list[Json]:
        items: list[Json] = (await self.api.get(resource.collection(self.namespace)))["items"]
        return items

    async def patch(self, resource: Resource, name: str, patch: Json, subresource: str = "") -> Json:
        path = resource.path((self.namespace, name), subresource)
        return await self.api.patch(path, patch, content_type=MERGE)

    async def delete(self, resource: Resource, name: str, propagation: str = "Background") -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        await self.api.call("DELETE", resource.path((self.namespace, name)), body=options)

    async def set_ready(self, pod: Json, *, ready: bool = True, ip: str = "127.77.0.9") -> None:
        state = "True" if ready else "False"
        condition = {"type": "Ready", "status": state, "lastTransitionTime": "2026-11-21T03:00:00Z"}
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}
        await self.patch(PODS, pod["metadata"]["name"], {"status": status}, "status")

    async def finish_deletions(self) -> None:
        """What a kubelet does with Pods that are to go."""
        for pod in await self.list(PODS):
            if "deletionTimestamp" in pod["metadata"]:
                options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
                await self.api.call("DELETE", PODS.path(key_of(pod)), body=options)

    async def play_kubelet(self) -> None:
        """Every Pod comes up, and goes when it is to; what goes meanwhile is seen the next time."""
        with contextlib.suppress(ApiError):
            await self.finish_deletions()
            for pod in await self.list(PODS):
                if not is_ready(pod):
                    await self.set_ready(pod)

    async def until(self, holds: Callable[[], Any], *, kubelet: bool = False, seconds: float = _WAIT_SECONDS) -> Any:
        """Poll `holds` (an async function) until it answers something true."""
        deadline = time.monotonic() + deadline_seconds(seconds)
        while True:
            if kubelet:
                await self.play_kubelet()
            found = await holds()
            if found:
                return found
            assert time.monotonic() < deadline, await self._state()
            await asyncio.sleep(0.03)

    async def _state(self) -> str:
        pods = [(pod["metadata"]["name"], pod["status"]) for pod in await self.list(PODS)]
        return f"condition not met in time; pods: {pods}"


@pytest.fixture
async def world(
    server_kubeconfig: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[World]:
    caplog.set_level(logging.INFO)  # a log line that cannot be written is a defect too
    api = Api(server_kubeconfig)
    namespace = request.node.name.replace("_", "-").replace("[", "-").replace("]", "")[:60].strip("-").lower()
    metadata = {"name": namespace}
    await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    world = World(api, server_kubeconfig, namespace)
    await world.start_controllers()
    try:
        yield world
    finally:
        await world.stop_controllers()
        for node in (await api.get(NODES.path()))["items"]:
            await api.delete(NODES.path(key_of(node)))
        await api.close()
    assert not [record for record in caplog.get_records("call") if record.message == "reconcile_failed"]


@pytest.fixture
async def node(world: World) -> Json:
    created = await world.create(NODES, "node-1", labels={"kind": "fast"})
    status = {
        "allocatable": {"nvidia.com/gpu": "2", "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await world.patch(NODES, "node-1", {"status": status}, "status")
    return created
