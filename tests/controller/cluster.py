"""A real API server and a real operator as processes, and Pods that the test brings up and down itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import yaml
from aiohttp import web
from tests.machine import deadline_seconds

from fulcrum.api.worker import LoadReport, RoleRequest
from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import DEPLOYMENT, EVENT, INFERENCE_CLUSTER, POD, Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.kube import APPLY, MERGE, Api, ApiFailure

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]
T = TypeVar("T")


async def eventually(check: Callable[[], Awaitable[T]], *, seconds: float = 60.0) -> T:
    """Poll until `check` returns something true; its last value or error is what the failure shows."""
    deadline = time.monotonic() + deadline_seconds(seconds)
    while True:
        try:
            value = await check()
            if value:
                return value
            problem: object = value
        except (AssertionError, KeyError, StopIteration, IndexError, TypeError) as error:
            problem = error
        if time.monotonic() > deadline:
            msg = f"not within {seconds} s: {problem!r}"
            raise AssertionError(msg)
        await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(app: web.Application, address: str, port: int) -> AsyncIterator[None]:
    """Serve `app` to another process.

    It stops accepting a turn of the loop before it closes: asyncio never closes a connection that it
    accepts in the turn in which its server is closed.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server((address, port))
    await web.SockSite(runner, listener).start()
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0)
        await runner.cleanup()


class ApiServer:
    """`fulcrum apiserver` as a process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        self.kubeconfig = folder / "kubeconfig"
        self.operator_kubeconfig = folder / "operator-kubeconfig"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.kubeconfig.unlink(missing_ok=True)
        with (self.folder / "apiserver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    BIN / "fulcrum",
                    "apiserver",
                    "--state-dir",
                    self.folder / "state",
                    "--kubeconfig-out",
                    self.kubeconfig,
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + deadline_seconds(90)
        while self.kubectl("get", "--raw", "/readyz", check=False).returncode != 0:
            assert time.monotonic() < deadline, (self.folder / "apiserver.log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(deadline_seconds(60))
            self._process = None

    def kubectl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=deadline_seconds(120))

    def install(self) -> None:
        """Install the CRDs and the operator's rights, and log in as the operator: it gets no other rights here."""
        self.kubectl("apply", "-k", str(REPOSITORY / "crds"))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={deadline_seconds(60):.0f}s")
        self.kubectl("apply", "-f", str(REPOSITORY / "manifests" / "operator" / "namespace.yaml"))
        self.kubectl("apply", "-k", str(REPOSITORY / "manifests" / "rbac"))
        token = self.kubectl("create", "token", "fulcrum-operator", "-n", "fulcrum-system", "--duration=1h").stdout
        config = yaml.safe_load(self.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token.strip()}
        self.operator_kubeconfig.write_text(yaml.safe_dump(config))

    async def writes_at_rest(self, *, seconds: float, most: int = 0) -> dict[str, float]:
        """Write requests so far, once there come at most so many in as many seconds; something may be under way yet."""
        for _ in range(4):
            before = self.writes()
            await asyncio.sleep(seconds)
            after = self.writes()
            if sum(after.values()) - sum(before.values()) <= most:
                return after
        raise AssertionError({name: count - before.get(name, 0) for name, count in after.items()})

    def writes(self) -> dict[str, float]:
        """Write requests so far, by what they wrote."""
        found = {}
        for line in self.kubectl("get", "--raw", "/metrics").stdout.splitlines():
            name, _, count = line.rpartition(" ")
            if name.startswith("apiserver_request_total") and not re.search(r'verb="(GET|LIST|WATCH)"', name):
                found[name] = float(count)
        return found


class Operator:
    """`fulcrum operator` as a process; alone unless it is told a Lease."""

    def __init__(self, server: ApiServer, *arguments: str, pod: str = "alone") -> None:
        self._server = server
        self._pod = pod
        self._arguments = arguments if "--lease-duration" in arguments else (*arguments, "--no-leader-election")
        self.log = server.folder / f"operator-{random.getrandbits(32):08x}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [BIN / "fulcrum", "operator", "--health-address", "127.0.0.1:0", *self._arguments],
                env={**os.environ, "KUBECONFIG": str(self._server.operator_kubeconfig), "POD_NAME": self._pod},
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.stop() == 0, self.log.read_text()

    def stop(self) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(deadline_seconds(60))

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for it to end by itself; returns the exit code."""
        assert self._process is not None
        code = self._process.wait(deadline_seconds(60))
        self._process = None
        return code

    def peak_bytes(self) -> int:
        """Largest resident memory so far."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    def metrics(self) -> str:
        """Its metrics page."""
        found = re.search(r"health=(\S+)", self.log.read_text())
        assert found is not None, "not started yet"
        with urllib.request.urlopen(f"http://{found[1]}/metrics", timeout=deadline_seconds(60)) as answer:
            text: str = answer.read().decode()
        return text


class Agent:
    """The small part of a worker's agent that the operator talks to."""

    def __init__(self) -> None:
        self.running: int | None = 0
        self.told: list[RoleRequest] = []
        self.authorizations: list[str] = []

    async def load(self, _: web.Request) -> web.Response:
        last = self.told[-1] if self.told else RoleRequest(role="mixed", role_epoch=0)  # type: ignore[arg-type]
        report = LoadReport(
            role=last.role,
            role_epoch=last.role_epoch,
            ready=True,
            draining=False,
            running=self.running,
            waiting=0,
            kv_held_for_peers=0.0,
        )
        return web.Response(body=msgspec.json.encode(report))

    async def role(self, request: web.Request) -> web.Response:
        self.authorizations.append(request.headers.get("Authorization", ""))
        self.told.append(msgspec.json.decode(await request.read(), type=RoleRequest))
        return web.Response()

    @asynccontextmanager
    async def serve(self, address: str) -> AsyncIterator[Agent]:
        app = web.Application()
        app.add_routes([web.get("/load", self.load), web.post("/role", self.role)])
        async with serving(app, address, 8001):
            yield self


class ReportingAgent(Agent):
    """An agent that always reports the same."""

    def __init__(self, report: LoadReport) -> None:
        super().__init__()
        self.report = report

    async def load(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.report))


_ADDRESSES = (f"127.{random.randint(100, 200)}.{random.randint(1, 250)}.{n}" for n in itertools.cycle(range(1, 250)))


class Cluster:
    """One InferenceCluster in a namespace of its own."""

    name = "c"

    def __init__(self, server: ApiServer, api: Api, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.api = api
        self.kube = Kube(api, Metrics())

    async def apply(self, *, workers: int = 4, **spec: Any) -> None:
        """Apply the object as its user: with a field manager that is not the operator's."""
        document = {
            "apiVersion": "fulcrum.dev/v1alpha1",
            "kind": "InferenceCluster",
            "metadata": {"name": self.name},
            "spec": {
                "model": {"name": "m"},
                "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": workers}}],
                "balance": {"mode": "Manual"},
                **spec,
            },
        }
        path = INFERENCE_CLUSTER.path((self.namespace, self.name))
        await self.api.patch(path, document, content_type=APPLY, params={"fieldManager": "user", "force": "true"})

    async def patch(self, patch: Manifest) -> None:
        await self.kube.merge(INFERENCE_CLUSTER, self.namespace, self.name, patch)

    async def get(self) -> Manifest:
        document = await self.kube.get(INFERENCE_CLUSTER, self.namespace, self.name)
        assert document is not None
        return document

    async def status(self) -> Manifest:
        status: Manifest = (await self.get())["status"]
        return status

    async def condition(self, kind: str) -> Manifest:
        return next(c for c in (await self.status())["conditions"] if c["type"] == kind)

    async def pods(self) -> dict[str, Manifest]:
        found = await self.kube.list(POD, self.namespace, {"fulcrum.dev/cluster": self.name})
        return {pod["metadata"]["name"]: pod for pod in found}

    async def roles(self) -> dict[str, str]:
        return {name: pod["metadata"]["labels"]["fulcrum.dev/role"] for name, pod in (await self.pods()).items()}

    async def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in await self.kube.list(EVENT, self.namespace, {})]

    async def set_pod_status(self, name: str, *, ready: bool = True, **fields: Any) -> None:
        # As a kubelet writes it: what became ready at an unknown time counts as settled, and repairs begin at once.
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status: Manifest = {
            "phase": "Running",
            "podIP": next(_ADDRESSES),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}],
            **fields,
        }
        path = POD.path((self.namespace, name), "status")
        await self.api.patch(path, {"status": status}, content_type=MERGE)

    async def settle(self, count: int = 4) -> None:
        """Bring up what the operator made, as a kubelet and a Deployment controller would."""

        async def all_made() -> bool:
            return len(await self.pods()) == count and await self.deployment() is not None

        await eventually(all_made)
        for name in await self.pods():
            await self.set_pod_status(name)
        await self.bring_up_gateway()

        async def settled() -> bool:
            status = await self.status()
            available, progressing = await self.condition("Available"), await self.condition("Progressing")
            return bool(
                status["ready"] == f"{count}/{count}"
                and (available["status"], progressing["status"]) == ("True", "False")
            )

        await eventually(settled)

    async def bring_up_gateway(self) -> None:
        """As a Deployment controller and two gateway Pods would."""
        status = {"status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2}}
        path = DEPLOYMENT.path((self.namespace, f"{self.name}-gateway"), "status")
        await self.api.patch(path, status, content_type=MERGE)

    async def deployment(self) -> Manifest | None:
        return await self.kube.get(DEPLOYMENT, self.namespace, f"{self.name}-gateway")


class Kubelet:
    """Brings up every worker, with an agent, and the gateways; no node holds the Pods, so that they end at once."""

    def __init__(self, cluster: Cluster, *, starts_seconds: float = 0.0) -> None:
        """`starts_seconds`: how long a worker needs until it is ready."""
        self._cluster = cluster
        self._starts_seconds = starts_seconds
        self._stack = AsyncExitStack()
        self.agents: dict[str, Agent] = {}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Kubelet]:
        async with asyncio.TaskGroup() as starts:
            task = asyncio.create_task(self._work(starts))
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._stack.aclose()

    def set_running(self, count: int) -> None:
        for agent in self.agents.values():
            agent.running = count

    async def _work(self, starts: asyncio.TaskGroup) -> None:
        gateway_is_up = False
        while True:
            for name, pod in (await self._cluster.pods()).items():
                uid = pod["metadata"]["uid"]
                if "deletionTimestamp" not in pod["metadata"] and uid not in self.agents:
                    self.agents[uid] = Agent()
                    starts.create_task(self._start(name, uid))
            deployment = await self._cluster.deployment()
            if deployment is not None and not gateway_is_up:
                await self._cluster.bring_up_gateway()
                gateway_is_up = True
            await asyncio.sleep(0.05)

    async def _start(self, name: str, uid: str) -> None:
        await asyncio.sleep(self._starts_seconds)
        if (await self._cluster.pods()).get(name, {"metadata": {"uid": ""}})["metadata"]["uid"] != uid:
            return  # it was deleted meanwhile
        try:
            await self._cluster.set_pod_status(name)
        except ApiFailure:
            if name in await self._cluster.pods():
                raise
        pod = (await self._cluster.pods()).get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:  # it may be deleted at any moment
            await self._stack.enter_async_context(self.agents[uid].serve(pod["status"]["podIP"]))


async def settled(cluster: Cluster, ready: str, ratio: str) -> bool:
    """Whether the status says that all is as the spec says, with so many workers in these roles."""
    document = await cluster.get()
    status = document.get("status") or {}
    states = {entry["type"]: entry for entry in status["conditions"]}
    return bool(
        (status["ready"], status["ratio"]) == (ready, ratio)
        and states["Available"]["status"] == "True"
        and states["Progressing"]["status"] == "False"
        and status["observedGeneration"] == document["metadata"]["generation"]
    )


@contextlib.contextmanager
def running_api_server(folder: Path, *options: str) -> Iterator[ApiServer]:
    server = ApiServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def client_of(server: ApiServer) -> Api:
    return Api(server.kubeconfig)
