"""Whatever one author writes, the clusters of the others are reconciled.

`FULCRUM_HOSTILE_OBJECTS=10000` makes it the long run.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controller.cluster import Cluster, Operator, eventually
from tests.controller.hostile import documents

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children import Owner, refused_templates, worker_pod
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import INFERENCE_CLUSTER
from fulcrum.kube import ApiError, ApiFailure

OBJECTS = int(os.environ.get("FULCRUM_HOSTILE_OBJECTS", "150"))
AT_ONCE = 2
"""Writes of hostile objects at a time: the embedded API server shares the machine's cores with the operator."""
KEPT = 40
"""Hostile objects that are there at a time."""
OWNER = Owner(name="c", namespace="ns", uid="u")


@given(st.integers(0, 2**32))
def test_a_template_makes_a_pod_or_is_refused(seed: int) -> None:
    for document in documents(seed, 3):
        whole = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "spec": document}
        try:
            spec = load_inference_cluster({**whole, "metadata": {"name": "c"}}).spec
        except (InvalidValueError, RecursionError):
            continue
        refused = refused_templates(OWNER, spec, Installation())
        for pool in spec.pools:
            if pool.name not in refused:
                pod = worker_pod(OWNER, spec, pool, ordinal=0, role=Role.MIXED, image="i", token_fingerprint="f")
                assert {"worker"} <= {container["name"] for container in pod["spec"]["containers"]}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": []}, "spec.pools[0].template.spec is a list, and an object is needed"),
        ({"spec": {"volumes": ["x"]}}, "template.spec.volumes[0] is text, and an object is needed"),
        ({"spec": {"volumes": [None]}}, "template.spec.volumes[0] is null, and an object is needed"),
        ({"spec": {"volumes": [{}]}}, "template.spec.volumes[0].name is missing"),
        ({"spec": {"containers": None}}, "template.spec.containers: removes the container worker"),
        ({"spec": {"containers": [{"name": "worker", "env": "A"}]}}, "containers[0].env is text, and a list"),
        ({"spec": {"containers": [{"name": "worker", "env": [{"value": "b"}]}]}}, "env[0].name is missing"),
        ({"metadata": {"labels": {"a": 1}}}, "template.metadata.labels.a is a number, and text is needed"),
        ({"spec": {"terminationGracePeriodSeconds": "30"}}, "is text, and a number is needed"),
        ({"spec": {"hostNetwork": "yes"}}, "hostNetwork is text, and true or false is needed"),
    ],
)
def test_a_template_of_another_shape_is_refused_with_its_path(template: dict[str, Any], said: str) -> None:
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}, "template": template}]
    spec = msgspec.convert({"model": {"name": "m"}, "pools": pools}, InferenceClusterSpec)
    assert said in refused_templates(OWNER, spec, Installation())["p"].message


@pytest.mark.parametrize("container", [{"env": None}, {"ports": None}, {"resources": {"limits": {"cpu": 2}}}])
def test_a_null_and_a_number_are_allowed_where_kubernetes_allows_them(container: dict[str, Any]) -> None:
    template = {"metadata": None, "spec": {"containers": [{"name": "worker", **container}]}}
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}, "template": template}]
    spec = msgspec.convert({"model": {"name": "m"}, "pools": pools}, InferenceClusterSpec)
    assert refused_templates(OWNER, spec, Installation()) == {}
    assert worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i", token_fingerprint="f")


@pytest.mark.integration
async def test_good_clusters_are_reconciled_beside_hostile_objects(cluster: Cluster) -> None:
    other = Cluster(cluster.server, cluster.api, cluster.namespace)
    other.name = "d"
    accepted: list[str] = []
    slowest = 0.0
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        for good in (cluster, other):
            await good.apply(workers=4, balance={"mode": "Manual", "ratio": {"prefill": 2, "decode": 2}})
        writing = asyncio.create_task(_write_all(cluster, accepted))
        for turn in range(20):
            began = time.monotonic()
            prefill = 1 + turn % 3
            for good in (cluster, other):
                await good.patch({"spec": {"balance": {"ratio": {"prefill": prefill, "decode": 4 - prefill}}}})

            async def carried_out(prefill: int = prefill) -> bool:
                roles = [(await good.roles()).values() for good in (cluster, other)]
                return all(sum(role == "prefill" for role in each) == prefill for each in roles)

            await eventually(carried_out)
            slowest = max(slowest, time.monotonic() - began)
        await writing
        assert "fulcrum_" in operator.metrics()
    print(f"{OBJECTS} hostile objects, {len(accepted)} accepted; slowest of 20 ratios {slowest:.1f} s")
    assert len(accepted) >= 0.3 * OBJECTS


async def _write_all(cluster: Cluster, accepted: list[str]) -> None:
    """Write every hostile object; the oldest are deleted, so that their number stays bounded."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def write(number: int, spec: dict[str, Any]) -> None:
        name = f"h{number}"
        metadata = {"name": name, "namespace": cluster.namespace}
        body = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": metadata, "spec": spec}
        async with slots:
            try:
                await cluster.api.create(INFERENCE_CLUSTER.collection(cluster.namespace), body)
            except ApiError as error:
                if error.code >= 500:
                    raise
                return
            accepted.append(name)
            if len(accepted) > KEPT:
                await cluster.api.delete(INFERENCE_CLUSTER.path((cluster.namespace, accepted[-KEPT])))

    results = await asyncio.gather(
        *(write(number, spec) for number, spec in enumerate(documents(36, OBJECTS))), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, ApiFailure | ValueError):
            raise result


@pytest.mark.integration
@pytest.mark.parametrize("levels", [150, 900])
async def test_an_object_that_is_nested_too_deep_says_so(cluster: Cluster, levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    template = {"spec": value}
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}, "template": template}]
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        body = {
            "apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster",
            "metadata": {"name": "deep", "namespace": cluster.namespace},
            "spec": {"model": {"name": "m"}, "pools": pools},
        }  # fmt: skip
        await cluster.api.create(INFERENCE_CLUSTER.collection(cluster.namespace), body)

        async def said() -> bool:
            path = INFERENCE_CLUSTER.path((cluster.namespace, "deep"))
            conditions = (await cluster.api.get(path)).get("status", {})["conditions"]
            return any(c["reason"] == "InvalidSpec" and "nested" in c["message"] for c in conditions)

        await eventually(said)
        await cluster.apply()

        async def made() -> bool:
            return len(await cluster.pods()) == 4

        await eventually(made)
        assert "fulcrum_" in operator.metrics()
