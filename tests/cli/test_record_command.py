"""`fulcrum record` against a real API server, and against the rings of gateways behind their own inner port."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli.test_top_command import make_pod
from tests.controller.cluster import BIN, ApiServer, Cluster
from tests.machine import deadline_seconds

from fulcrum.admission import Admission
from fulcrum.api.internal_token import record_token
from fulcrum.api.names import PORT_GATEWAY_INSIDE
from fulcrum.api.record import PATH, Outcome
from fulcrum.api.serving_types import AdmissionPolicy, ClassMatch, QosClass
from fulcrum.controller.kube import SECRET
from fulcrum.gateway.dispatch.recorder import Recorder, record_page
from fulcrum.gateway.http.internal_server import InternalServer
from fulcrum.simulation.traffic.load import load_trace

pytestmark = pytest.mark.integration

TOKEN = "the-cluster-token"


def record(server: ApiServer, *arguments: str, code: int = 0) -> tuple[bytes, str]:
    """Standard output and standard error."""
    done = subprocess.run(
        [str(BIN / "fulcrum"), "record", *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        timeout=deadline_seconds(120),
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    return done.stdout, done.stderr.decode()


def recorder(start: float, requests: int, *classes: QosClass) -> Recorder:
    """A gateway's recorder that has served so many requests (of the first class) since `start`, and turned one away."""
    kept = Recorder(Admission(AdmissionPolicy.PREDICTIVE, classes), seed=7, shares_seed=True, now=start)
    for number in range(requests):
        kept.ring.add(1.0 + number, 0.5, 0.1, -1.0, 1000, 4000, 30, 5, 0, int(Outcome.SERVED), (1, 2 + number))
    kept.ring.add(30.0, 0.0, -1.0, 2.0, 1000, 4000, -1, 99, 0, int(Outcome.REJECTED), (1, 99))
    return kept


@asynccontextmanager
async def inner_port(address: str, kept: Recorder | None) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    server = InternalServer({}, guarded={PATH: lambda query: record_page(kept, query, loop.time())}, token=TOKEN)
    await server.start(address, PORT_GATEWAY_INSIDE)
    try:
        yield
    finally:
        server.close()


async def make_gateway(cluster: Cluster, name: str) -> str:
    return await make_pod(cluster, name, {"app.kubernetes.io/component": "gateway"})


async def make_token(cluster: Cluster) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{cluster.name}-record", "namespace": cluster.namespace},
        "data": {"token": base64.b64encode(record_token(TOKEN).encode()).decode()},
    }
    assert await cluster.kube.create(SECRET, document) is not None


async def test_all_gateways_are_read_and_written_as_one_trace(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.apply()
    await make_token(cluster)
    one, other = await make_gateway(cluster, "c-gateway-x"), await make_gateway(cluster, "c-gateway-y")
    where = (f"ic/{cluster.name}", "-n", cluster.namespace)
    start = asyncio.get_running_loop().time() - 100.0
    async with inner_port(one, recorder(start, 20)):
        out, said = await asyncio.to_thread(record, cluster.server, *where, code=1)
        assert out == b""
        assert "gateway c-gateway-y is not in it" in said
        assert "--partial" in said
        async with inner_port(other, recorder(start + 60.0, 5)):
            out, said = await asyncio.to_thread(record, cluster.server, *where)
            longer, _ = await asyncio.to_thread(record, cluster.server, *where, "--assume-output", "80")
        async with inner_port(other, None):
            _, off = await asyncio.to_thread(record, cluster.server, *where, code=1)
    assert "as far back as gateway c-gateway-y knows" in said
    assert "turned away" in said
    assert "spec.gateway.record is Off: set it to On" in off
    assert record_token(TOKEN) not in said + off
    file = tmp_path / "trace.jsonl"
    file.write_bytes(out)
    assert [(request.prompt_tokens, request.output_tokens) for request in load_trace(file)] == [(1000, 30)] * 5
    assert {request.qos_class for request in load_trace(file)} == {None}, "the cluster has no classes"
    file.write_bytes(longer)
    assert sorted(request.output_tokens for request in load_trace(file)) == [30] * 5 + [80] * 1


async def test_a_class_called_default_is_named_where_it_is_one_of_several(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.apply()
    await make_token(cluster)
    gateway = await make_gateway(cluster, "c-gateway-x")
    classes = (
        QosClass(name="default", priority=1, match=ClassMatch(header="x-class", value="default")),
        QosClass(name="others", priority=0),
    )
    start = asyncio.get_running_loop().time() - 100.0
    async with inner_port(gateway, recorder(start, 90, *classes)):
        where = (f"ic/{cluster.name}", "-n", cluster.namespace)
        out, said = await asyncio.to_thread(record, cluster.server, *where, "--last", "80")
    assert "of the last 80 s\n" in said
    file = tmp_path / "trace.jsonl"
    file.write_bytes(out)
    assert {request.qos_class for request in load_trace(file)} == {"default"}


async def test_what_is_missing_is_named_with_what_to_do(cluster: Cluster) -> None:
    await cluster.apply()
    where = (f"ic/{cluster.name}", "-n", cluster.namespace)
    _, said = await asyncio.to_thread(record, cluster.server, *where, code=1)
    assert "has no running gateway: look at fulcrum top" in said
    _, said = await asyncio.to_thread(record, cluster.server, *where, "--gateway", "c-gateway-x", code=2)
    assert "--gateway c-gateway-x: write it as POD=HOST:PORT" in said
    await make_gateway(cluster, "c-gateway-x")
    _, said = await asyncio.to_thread(record, cluster.server, *where, "--gateway", "c-gateway-y=127.0.0.1:9", code=2)
    assert (
        f"--gateway c-gateway-y=...: no gateway of ic/{cluster.name} that runs is called so; there is c-gateway-x"
        in said
    )
    _, said = await asyncio.to_thread(record, cluster.server, "ic/nobody", "-n", cluster.namespace, code=1)
    assert "there is no InferenceCluster nobody" in said
