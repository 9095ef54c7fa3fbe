"""The config.json of a cluster's model as the operator reads it, with its rights; the API server and it are real."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.controller.cluster import Cluster, Operator, eventually
from tests.controller.test_model_configs import A100, H100, LATENT, NAMED

from fulcrum.controller.kube import CONFIG_MAP
from fulcrum.kube import APPLY

pytestmark = pytest.mark.integration

POOLS = [{**each, "workers": {"min": 2, "max": 2}} for each in (H100, A100)]
READ_WITHIN_SECONDS = 200.0
"""A minute between two looks at a ConfigMap, and a tick that looks."""


async def write(cluster: Cluster, document: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "own"},
        "data": {"config.json": json.dumps(document)},
    }
    path = CONFIG_MAP.path((cluster.namespace, "own"))
    await cluster.api.patch(path, body, content_type=APPLY, params={"fieldManager": "user", "force": "true"})


async def backends(cluster: Cluster) -> dict[str, str | None]:
    """Return the attention backend that each worker was told, by uid of its Pod."""
    found = {}
    for pod in (await cluster.pods()).values():
        (container,) = pod["spec"]["containers"]
        config = next(entry["value"] for entry in container["env"] if entry["name"] == "FULCRUM_WORKER_CONFIG")
        found[pod["metadata"]["uid"]] = json.loads(config).get("attentionBackend")
    return found


async def degraded(cluster: Cluster) -> tuple[str, str]:
    condition = await cluster.condition("Degraded")
    return condition["reason"], condition["message"]


@pytest.mark.timeout(900)
async def test_a_new_cluster_waits_for_its_model_and_nothing_that_comes_later_restarts_it(cluster: Cluster) -> None:
    other = Cluster(cluster.server, cluster.api, cluster.namespace)
    other.name = "d"
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(model=NAMED, pools=POOLS)

        async def waits() -> bool:
            return (await degraded(cluster))[0] == "ModelConfigUnusable"

        async def healthy() -> bool:
            return (await degraded(cluster))[0] == "Healthy"

        await eventually(waits)
        said = (
            f"No worker of pool p is made: spec.model.config: ConfigMap {cluster.namespace}/own does not exist; create"
        )
        assert (await degraded(cluster))[1].startswith(said)
        assert "ModelConfigUnusable" in [reason for reason, _ in await cluster.events()]
        assert await cluster.pods() == {}
        await other.apply()
        await other.settle()
        assert (await degraded(other))[0] == "Healthy", "the others go on"

        await write(cluster, LATENT)

        async def made() -> bool:
            return len(await cluster.pods()) == 4

        await eventually(made, seconds=READ_WITHIN_SECONDS)
        await cluster.settle()
        await eventually(healthy)
        before = await backends(cluster)
        assert set(before.values()) == {"TRITON_MLA"}
        assert "described by ConfigMap own" in (await cluster.status())["kvCache"]["reason"]

        # A worker that dies while the ConfigMap is wrong is replaced by one as the others are.
        await write(cluster, {"model_type": "llama"})
        await eventually(waits, seconds=READ_WITHIN_SECONDS)
        assert "key config.json: config.json: hidden_size: is missing" in (await degraded(cluster))[1]
        assert await backends(cluster) == before
        name = next(iter(await cluster.pods()))
        await cluster.set_pod_status(name, ready=False, phase="Failed")

        async def replaced() -> bool:
            return len(set(await backends(cluster)) - set(before)) == 1

        await eventually(replaced, seconds=READ_WITHIN_SECONDS)
        after = await backends(cluster)
        assert set(after.values()) == {"TRITON_MLA"}
        assert len(set(after) & set(before)) == 3, "nothing else was restarted"
