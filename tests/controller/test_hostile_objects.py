"""Whatever one author writes, the clusters of the others are reconciled. `benchmarks/authors.py` is the long run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controller.bomb_run import beside_bombs
from tests.controller.cluster import Cluster, Operator, eventually
from tests.controller.hostile import documents
from tests.controller.hostile_run import beside_hostile_objects
from tests.machine import deadline_seconds

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children import Owner, refused_templates, worker_pod
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import INFERENCE_CLUSTER

OBJECTS = 150
OPERATOR_BYTES = 512 << 20
"""What the chart gives it."""
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
@pytest.mark.timeout(900)
async def test_good_clusters_are_reconciled_beside_hostile_objects(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        found = await beside_hostile_objects(cluster, OBJECTS, seed=36)
        assert "fulcrum_" in operator.metrics()
    print(found)
    assert found.accepted >= 0.3 * OBJECTS
    assert found.slowest_seconds < deadline_seconds(10)


@pytest.mark.integration
@pytest.mark.timeout(600)
async def test_a_good_cluster_is_reconciled_beside_one_that_answers_with_bombs(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        found = await beside_bombs(cluster, operator, changes=6)
    print(found)
    assert found.peak_bytes < OPERATOR_BYTES
    assert max(found.seconds) < deadline_seconds(10)


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
