"""The profile of a pool as the operator reads it, with the rights that it has; the API server and it are real."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.controller.cluster import Cluster, Operator, ReportingAgent, eventually
from tests.controller.test_ticks import QUICK, SPEED, Gateway, balance, make_gateway_pod, worker_roles

from fulcrum.controller.kube import CONFIG_MAP
from fulcrum.kube import APPLY

pytestmark = pytest.mark.integration

PROFILE = {
    "model": "m",
    "accelerator": "cpu",
    "kvCapacityTokens": 1_000_000,
    "coefficients": msgspec.to_builtins(SPEED),
}


UNMEASURED = msgspec.structs.replace(QUICK, kv_capacity_tokens=None, speed=None)


async def write(cluster: Cluster, text: str) -> None:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "speeds"},
        "data": {"profile.json": text},
    }
    path = CONFIG_MAP.path((cluster.namespace, "speeds"))
    await cluster.api.patch(path, document, content_type=APPLY, params={"fieldManager": "user", "force": "true"})


@pytest.mark.timeout(600)
async def test_the_operator_reckons_with_a_profile_and_a_wrong_one_is_said_and_harms_nobody(cluster: Cluster) -> None:
    """No worker knows its speed, and no roofline knows CPUs: the split can only follow from the profile."""
    other = Cluster(cluster.server, cluster.api, cluster.namespace)
    other.name = "d"
    pool = {"name": "p", "accelerator": "cpu", "workers": {"min": 4, "max": 4}}
    async with AsyncExitStack() as stack:
        stack.enter_context(Operator(cluster.server, "--namespace", cluster.namespace))
        await write(cluster, '{"model": "m"}')
        await cluster.apply(pools=[{**pool, "profile": {"configMap": "speeds"}}], balance=balance("Auto"))
        await cluster.settle()
        await other.apply()
        await other.settle()
        for pod in (await cluster.pods()).values():
            await stack.enter_async_context(ReportingAgent(UNMEASURED).serve(pod["status"]["podIP"]))
        await stack.enter_async_context(Gateway(cluster, "c-gateway-x").serve(await make_gateway_pod(cluster)))

        async def said() -> bool:
            return (await cluster.condition("Degraded"))["reason"] == "ProfileUnusable"

        await eventually(said)
        message = (await cluster.condition("Degraded"))["message"]
        assert f"spec.pools[] p, profile: ConfigMap {cluster.namespace}/speeds, key profile.json" in message
        assert "ProfileUnusable" in [reason for reason, _ in await cluster.events()]
        assert (await cluster.condition("Available"))["status"] == "True"
        assert (await other.condition("Degraded"))["reason"] == "Healthy"
        assert sorted((await worker_roles(cluster)).values()) == ["decode", "decode", "prefill", "prefill"]
        made = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}

        await write(cluster, json.dumps(PROFILE))

        async def followed() -> bool:
            return sorted((await worker_roles(cluster)).values()) == ["decode", "prefill", "prefill", "prefill"]

        await eventually(followed, seconds=200)

        async def healthy() -> bool:
            return (await cluster.condition("Degraded"))["reason"] == "Healthy"

        await eventually(healthy)
        assert {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()} == made
        assert (await other.condition("Degraded"))["reason"] == "Healthy"
