"""The Pod watch, against the embedded API server: usable Pods, role changes within 100 ms, outages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _loopback.launch import free_ports
from tests.gateway.conftest import eventually
from tests.machine import deadline_seconds

from fulcrum.api import names
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.internal_token import ENV_GATEWAY
from fulcrum.api.names import Role
from fulcrum.api.ports import Ports
from fulcrum.api.worker import KvCacheConfig, WorkerConfig
from fulcrum.gateway.config import Settings
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers.registry import WorkerRegistry
from fulcrum.gateway.workers.watch import (
    Condition,
    Container,
    ContainerStatus,
    EnvVar,
    Metadata,
    Pod,
    PodSpec,
    PodStatus,
    record_of,
    take,
    watch_workers,
)
from fulcrum.kube import MERGE, Api, ApiFailure, Changed, Listed

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str = "c-h100-0", *, role: str | None = "prefill", **status: Any) -> Pod:
    labels = {names.LABEL_CLUSTER: "c", names.LABEL_COMPONENT: names.COMPONENT_WORKER}
    if role is not None:
        labels[names.LABEL_ROLE] = role
    merged: dict[str, Any] = {
        "phase": "Running",
        "podIP": "127.77.0.1",
        "conditions": [Condition(type="Ready", status="True")],
        "containerStatuses": [ContainerStatus(restartCount=0)],
        **status,
    }
    return Pod(
        metadata=Metadata(name=name, labels=labels, uid="u", annotations={names.ANNOTATION_ROLE_EPOCH: "4"}),
        spec=PodSpec(containers=[Container(name="worker", image="i")]),
        status=PodStatus(**merged),
    )


@pytest.mark.parametrize(
    ("given", "role"),
    [
        (pod(), Role.PREFILL),
        (pod(role="mixed"), Role.MIXED),
        (pod(role="draining"), Role.DRAINING),
        (pod(role=None), None),
        (pod(role="boss"), None),
        (pod(phase="Pending"), None),
        (pod(podIP=None), None),
        (pod(conditions=None), None),
        (pod(conditions=[Condition(type="Ready", status="False")]), None),
    ],
)
def test_which_pods_are_workers(given: Pod, role: Role | None) -> None:
    record = record_of(given)
    assert (record.role if record else None) == role
    if record is not None:
        assert (record.role_epoch, record.host, record.port, record.incarnation) == (4, "127.77.0.1", 8000, "u/0")


def worker_config(pool: str, **changes: Any) -> str:
    config = WorkerConfig(cluster="c", pool=pool, model="org/m", served_name="m", accelerator="cpu", **changes)
    return msgspec.json.encode(config).decode()


def of_pool(pool: str, *, image: str = "i", document: str | None = None) -> WorkerRecord:
    given = pod()
    assert given.metadata.labels is not None
    given.metadata.labels[names.LABEL_POOL] = pool
    env = [EnvVar(name=names.ENV_WORKER_CONFIG, value=document or worker_config(pool))]
    given.spec = PodSpec(containers=[Container(name="worker", image=image, env=env)], nodeName="n1")
    record = record_of(given)
    assert record is not None
    return record


def test_what_routing_must_know_of_a_pod() -> None:
    record = of_pool("h100")
    assert (record.pool, record.node, record.agent_port) == ("h100", "n1", 8001)
    # Pools differ in much that does not touch the format of the KV.
    assert of_pool("l40s", document=worker_config("l40s", tensor_parallel=2)).revision == record.revision
    batches = ("--max-num-seqs", "512", "--max_num_batched_tokens=16384", "--no-enforce-eager")
    experts = ("--enable-expert-parallel", "--all2all-backend", "deepep_low_latency", "--moe-backend=triton")
    assert of_pool("l40s", document=worker_config("l40s", engine_args=experts)).revision == record.revision
    assert of_pool("l40s", document=worker_config("l40s", engine_args=batches)).revision == record.revision


@pytest.mark.parametrize(
    "other",
    [
        of_pool("h100", image="i2"),
        of_pool("h100", document=worker_config("h100", kv_cache=KvCacheConfig(dtype="bf16"))),
        of_pool("h100", document=worker_config("h100", engine_args=("--seed=1",))),
        of_pool("h100", document=worker_config("h100", engine_args=("--max-num-seqs", "8", "--dtype", "half"))),
        of_pool("h100", document=worker_config("h100", attention_backend="FLASHINFER")),
        of_pool("h100", document=worker_config("h100", model_revision="abc")),
        of_pool("h100", document=worker_config("h100", kv_cache=KvCacheConfig(skip_layers=("0",)))),
        of_pool("h100", document=worker_config("h100", exchanges_kv=False)),
        of_pool("h100", document='{"of": "another version"}'),
    ],
)
def test_what_changes_the_format_of_the_kv_is_another_revision(other: WorkerRecord) -> None:
    assert other.revision != of_pool("h100").revision


def test_workers_whose_engines_took_another_kv_type_share_kv_only_with_their_like() -> None:
    """A type that is not the one that was told, as its agent reports it, is a revision of its own."""
    registry = WorkerRegistry(Metrics())
    told = KvCacheConfig(dtype="fp8")
    for name in ("a", "b"):
        given = of_pool("h100", document=worker_config("h100", kv_cache=told))
        assert given.kv_cache_dtype == "fp8"
        registry.put(msgspec.structs.replace(given, name=name, host=f"127.77.0.{ord(name)}"))
    one, other = (worker for worker in registry.workers)
    for dtype in (None, "fp8"):  # not known yet, and as it was told
        registry.took_kv_dtype(one, dtype)
        assert one.ranks[0].state.revision == other.ranks[0].state.revision
    registry.took_kv_dtype(one, "fp8_ds_mla")
    assert one.ranks[0].state.revision != other.ranks[0].state.revision
    registry.took_kv_dtype(other, "fp8_ds_mla")
    assert one.ranks[0].state.revision == other.ranks[0].state.revision
    registry.put(one.record)  # as the watch does with each change of the Pod
    assert one.ranks[0].state.revision == other.ranks[0].state.revision
    registry.took_kv_dtype(one, "fp8")
    assert one.ranks[0].state.revision != other.ranks[0].state.revision


def test_a_mixed_worker_without_transfers_pairs_with_none_in_another_role() -> None:
    documents = [worker_config("h100", exchanges_kv=exchanges) for exchanges in (True, False)]
    usual, without = (of_pool("h100", document=document) for document in documents)
    assert without.revision not in {usual.revision, ""}


async def test_workers_are_reached_on_their_own_ports_and_one_pods_nonsense_is_its_own() -> None:
    pods = [pod(f"w{number}") for number in range(3)]
    for given, said in zip(pods[1:], ('{"engine":9000,"agent":9001}', '{"engine":70000}'), strict=True):
        given.metadata.annotations = {names.ANNOTATION_PORTS: said}
    follower = Follower()
    take(follower, Listed(items=pods, version="1"), {})
    reached = {
        worker.name: (worker.ranks[0].engine.host, worker.ranks[0].engine.port) for worker in follower.registry.workers
    }
    assert reached == {"w0": ("127.77.0.1", 8000), "w1": ("127.77.0.1", 9000)}
    record = record_of(pods[1])
    assert record is not None
    assert record.agent_port == 9001
    pods[1].metadata.annotations = {names.ANNOTATION_PORTS: "{"}
    take(follower, Changed(kind="MODIFIED", object=pods[1], version="2"), {})
    assert [worker.name for worker in follower.registry.workers] == ["w0"]


@pytest.mark.parametrize("said", ["\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 5000, "-1", "x", ""])
def test_an_epoch_that_no_operator_wrote_is_none_and_takes_no_other_pod_along(said: str) -> None:
    odd = pod("odd")
    odd.metadata.annotations = {names.ANNOTATION_ROLE_EPOCH: said}
    follower = Follower()
    take(follower, Listed(items=[odd, pod("good")], version="1"), {})
    assert {worker.name for worker in follower.registry.workers} == {"odd", "good"}
    record = record_of(odd)
    assert record is not None
    assert record.role_epoch == 0


@pytest.mark.parametrize("document", ["[" * 5000, '{"x":' * 5000, "{", "null"])
def test_a_configuration_that_cannot_be_read_takes_no_other_pod_along(document: str) -> None:
    odd = pod("odd")
    odd.spec.containers[0].env = [EnvVar(name=names.ENV_WORKER_CONFIG, value=document)]
    follower = Follower()
    take(follower, Listed(items=[odd, pod("good")], version="1"), {})
    assert {worker.name for worker in follower.registry.workers} == {"odd", "good"}


def test_ports_change_nothing_of_the_kv() -> None:
    document = worker_config("h100", ports=Ports(engine=9000, nixl=5700))
    assert of_pool("h100", document=document).revision == of_pool("h100").revision


def test_a_pod_that_is_being_deleted_is_no_worker() -> None:
    leaving = pod()
    leaving.metadata.deletionTimestamp = "2026-01-01T00:00:00Z"
    assert record_of(leaving) is None


class ApiServer:
    """`fulcrum apiserver` as a process."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.kubeconfig = state / "kubeconfig"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Api:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fulcrum.cli.app", "apiserver", "--state-dir", str(self.state),
            "--kubeconfig-out", str(self.kubeconfig), stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(deadline_seconds(120)):
            while True:
                client = self.client()
                try:
                    await client.get(PODS)
                except ApiFailure:
                    await client.close()
                else:
                    return client
                await asyncio.sleep(0.1)

    def client(self) -> Api:
        return Api(self.kubeconfig)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


def gateway_pod(name: str, **status: Any) -> Pod:
    given = pod(name, role=None, **status)
    given.metadata.labels = {names.LABEL_CLUSTER: "c", names.LABEL_COMPONENT: names.COMPONENT_GATEWAY}
    return given


class Follower:
    """A gateway's view without its server."""

    def __init__(self) -> None:
        config = GatewayConfig(cluster="c", served_name="m", model="m")
        self.settings = Settings(config=config, host="127.0.0.1", namespace="default", pod_name="g0")
        self.metrics = Metrics()
        self.registry = WorkerRegistry(self.metrics)
        self.watch_connected = False
        self.gateways = 0
        self.others: frozenset[str] = frozenset()

    def share(self, gateways: int) -> None:
        self.gateways = gateways

    def meet(self, hosts: frozenset[str]) -> None:
        self.others = hosts

    def roles(self) -> dict[str, str]:
        return {worker.name: worker.role.value for worker in self.registry.workers}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    yield server
    await server.stop()


@pytest.fixture
async def follower(server: ApiServer) -> AsyncIterator[Follower]:
    follower = Follower()
    task = asyncio.create_task(watch_workers(follower))
    yield follower
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def make_pod(client: Api, given: Pod) -> None:
    document = msgspec.to_builtins(given)
    document["metadata"].pop("uid")
    await client.create(PODS, {**document, "kind": "Pod", "apiVersion": "v1"})
    await set_status(client, given)


async def set_status(client: Api, given: Pod) -> None:
    status = {"status": msgspec.to_builtins(given.status)}
    for container in status["status"]["containerStatuses"]:
        container |= {"name": "worker", "ready": True, "image": "i", "imageID": ""}
    await client.patch(f"{PODS}/{given.metadata.name}/status", status, content_type=MERGE)


async def set_role(client: Api, name: str, role: str) -> None:
    patch = {"metadata": {"labels": {names.LABEL_ROLE: role}}}
    await client.patch(f"{PODS}/{name}", patch, content_type=MERGE)


@pytest.mark.integration
async def test_the_view_follows_the_pods(server: ApiServer, follower: Follower) -> None:
    # The watch began before there was a server.
    client = await server.start()
    await make_pod(client, pod("w0"))
    await make_pod(client, pod("w1", role="decode"))
    other = pod("other")
    other.metadata.labels = {**(other.metadata.labels or {}), names.LABEL_CLUSTER: "another"}
    await make_pod(client, other)
    await eventually(lambda: follower.roles() == {"w0": "prefill", "w1": "decode"})

    await set_role(client, "w1", "draining")
    await eventually(lambda: follower.roles() == {"w0": "prefill", "w1": "draining"})

    await set_status(client, pod("w0", conditions=[Condition(type="Ready", status="False")]))
    await eventually(lambda: follower.roles() == {"w1": "draining"})
    await set_status(client, pod("w0"))
    await eventually(lambda: follower.roles() == {"w0": "prefill", "w1": "draining"})

    await client.delete(f"{PODS}/w1")
    await eventually(lambda: follower.roles() == {"w0": "prefill"})
    await client.close()


@pytest.mark.integration
async def test_ready_gateways_are_counted(server: ApiServer, follower: Follower) -> None:
    client = await server.start()
    await eventually(lambda: follower.gateways == 1)  # itself, whatever its Pod says
    for name, address in (("g0", "127.77.0.1"), ("g1", "127.77.0.2"), ("g2", "127.77.0.3")):
        await make_pod(client, gateway_pod(name, podIP=address))
    await eventually(lambda: follower.gateways == 3)
    assert follower.others == {"127.77.0.2", "127.77.0.3"}
    await set_status(client, gateway_pod("g2", podIP="127.77.0.4"))
    await eventually(lambda: follower.others == {"127.77.0.2", "127.77.0.4"})
    await set_status(client, gateway_pod("g2", conditions=[Condition(type="Ready", status="False")]))
    await eventually(lambda: follower.gateways == 2)
    assert follower.others == {"127.77.0.2"}
    await client.delete(f"{PODS}/g1")
    await eventually(lambda: follower.gateways == 1)
    await set_status(client, gateway_pod("g0", conditions=[Condition(type="Ready", status="False")]))
    await set_status(client, gateway_pod("g2"))
    await eventually(lambda: follower.gateways == 2)
    assert follower.roles() == {}
    await client.close()


async def start_gateway(
    stack: contextlib.AsyncExitStack,
    name: str,
    config: GatewayConfig,
    *,
    host: str = "127.0.0.1",
    inside_port: int = 0,
    token: str = "",
) -> int:
    """A gateway process that has the Pod `name`; its port, once it is ready."""
    (port,) = free_ports(1, host)
    document = msgspec.json.encode(config).decode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", host, "--port", str(port),
        "--metrics-port", str(inside_port), "--lame-duck-seconds", "0", "--config", document,
        env={**os.environ, names.ENV_POD_NAME: name, names.ENV_POD_NAMESPACE: "default", ENV_GATEWAY: token},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    stack.push_async_callback(process.wait)
    stack.callback(process.terminate)
    async with asyncio.timeout(deadline_seconds(60)):
        while await status_of(port, "GET", "/ready", host=host) != 200:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.05)
    return port


async def status_of(port: int, method: str, path: str, body: bytes = b"", *, host: str = "127.0.0.1") -> int:
    """Status of one request with the key; 0 where nobody listens."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return 0
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret-one\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


@pytest.mark.integration
async def test_two_gateways_hold_a_keys_limit_together(server: ApiServer, tmp_path: Path) -> None:
    """Without a worker: a key is charged first (429), and only then is there nobody to serve the request (503)."""
    client = await server.start()
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "one").write_text('{"key": "secret-one", "requestsPerMinute": 12}')
    config = GatewayConfig(cluster="c", served_name="m", model="m", api_keys_directory=str(keys))
    for name in ("g0", "g1"):
        await make_pod(client, gateway_pod(name))
    body = b'{"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}'
    async with contextlib.AsyncExitStack() as stack:
        ports = [await start_gateway(stack, name, config) for name in ("g0", "g1")]
        began_at = asyncio.get_running_loop().time()
        statuses = [await status_of(port, "POST", "/v1/completions", body) for _ in range(12) for port in ports]
        seconds = asyncio.get_running_loop().time() - began_at
        assert set(statuses) == {503, 429}
        let_in = statuses.count(503)
        assert 12 <= let_in <= 12 + seconds * 12 / 60
    await client.close()


@pytest.mark.integration
async def test_a_restarted_container_is_another_engine(server: ApiServer, follower: Follower) -> None:
    client = await server.start()
    joined: list[str] = []
    follower.registry.joined = lambda worker: joined.append(worker.record.incarnation)
    await make_pod(client, pod("w0"))
    await eventually(lambda: len(joined) == 1)
    restarted = ContainerStatus(restartCount=1)
    await set_status(client, pod("w0", containerStatuses=[restarted]))
    await eventually(lambda: len(joined) == 2)
    await client.close()


@pytest.mark.integration
async def test_workers_stay_while_the_api_server_is_away(server: ApiServer, follower: Follower) -> None:
    client = await server.start()
    await make_pod(client, pod("w0"))
    await make_pod(client, pod("w1"))
    await eventually(lambda: len(follower.roles()) == 2)
    await client.close()
    await server.stop()
    await eventually(lambda: not follower.watch_connected)
    assert len(follower.roles()) == 2
    client = await server.start()
    await set_role(client, "w0", "decode")
    await client.delete(f"{PODS}/w1")
    await eventually(lambda: follower.roles() == {"w0": "decode"})
    await client.close()


@pytest.mark.integration
async def test_a_role_is_routed_by_as_soon_as_it_is_written(server: ApiServer, follower: Follower) -> None:
    client = await server.start()
    await make_pod(client, pod("w0"))
    await eventually(lambda: len(follower.roles()) == 1)
    answered_seconds, routed_seconds = [], []
    for number in range(40):
        role = ("decode", "prefill")[number % 2]
        began = time.perf_counter()
        await set_role(client, "w0", role)
        answered_seconds.append(time.perf_counter() - began)
        async with asyncio.timeout(deadline_seconds(60)):
            while follower.roles()["w0"] != role:  # noqa: ASYNC110  (polling at each turn is the measurement)
                await asyncio.sleep(0)
        routed_seconds.append(time.perf_counter() - began)
    answered, routed = statistics.median(answered_seconds), statistics.median(routed_seconds)
    print(f"PATCH to answer: median {answered * 1e3:.1f} ms, to routing: {routed * 1e3:.1f} ms")
    assert routed < 5 * answered
    assert follower.metrics.role_changes.total() == 40
    await client.close()
