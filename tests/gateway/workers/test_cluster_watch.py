"""Shares by which KV is routed, and LoRA adapters, read from the gateway's own InferenceCluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway.conftest import eventually
from tests.gateway.workers.test_watch import ApiServer

from fulcrum.api import names
from fulcrum.api.crd import custom_resource_definition
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.worker import AdapterSource
from fulcrum.gateway.config import Settings
from fulcrum.gateway.workers.cluster_watch import watch_cluster
from fulcrum.kube import MERGE, Api, ApiFailure
from fulcrum.routing.kv_routes import Shares

CLUSTERS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    yield server
    await server.stop()


async def make_cluster(client: Api, name: str) -> None:
    spec = {
        "model": {"name": "m"},
        "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}],
    }
    document = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
    await client.create(CLUSTERS, document)


async def set_routes(client: Api, name: str, **shares: float) -> None:
    routes = [{"prefill": "p", "decode": pool, "share": share} for pool, share in shares.items()]
    await client.patch(f"{CLUSTERS}/{name}/status", {"status": {"routes": routes}}, content_type=MERGE)


@pytest.mark.integration
async def test_the_shares_follow_the_status_of_the_own_cluster(server: ApiServer) -> None:
    client = await server.start()
    await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
    seen: list[Shares] = []
    adapters_seen: list[list[str]] = []
    settings = Settings(config=GatewayConfig(cluster="c", served_name="c", model="m"), host="127.0.0.1")

    def take_adapters(adapters: tuple[AdapterSource, ...]) -> None:
        adapters_seen.append([each.name for each in adapters])

    task = asyncio.create_task(watch_cluster(settings, seen.append, take_adapters))
    try:
        for name in ("c", "other"):
            await eventually_made(client, name)
        await set_routes(client, "other", a=1.0)
        await set_routes(client, "c", a=0.75, b=0.25)
        await eventually(lambda: bool(seen) and seen[-1] == {"p": {"a": 0.75, "b": 0.25}})
        await set_routes(client, "c", a=0.5, b=0.5)
        await eventually(lambda: seen[-1] == {"p": {"a": 0.5, "b": 0.5}})
        assert {"p": {"a": 1.0}} not in seen
        assert adapters_seen[-1] == []
        listed = {"max": 2, "list": [{"name": "sql", "source": "/adapters/sql"}]}
        await client.patch(f"{CLUSTERS}/c", {"spec": {"adapters": listed}}, content_type=MERGE)
        await eventually(lambda: adapters_seen[-1] == ["sql"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def eventually_made(client: Api, name: str) -> None:
    """Create a cluster, once its CRD is established."""
    for _ in range(200):
        try:
            await make_cluster(client, name)
        except ApiFailure:  # not established yet
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("the CRD was never established")
