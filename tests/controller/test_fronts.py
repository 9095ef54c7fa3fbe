"""An operator keeps InferenceGateways: children, status, grants; two of them do not stop each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.controller.cluster import Cluster, Operator, eventually

from fulcrum.api.front import FrontConfig
from fulcrum.api.front_types import InferenceGatewaySpec
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.front import front_children
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import DEPLOYMENT, EVENT, INFERENCE_GATEWAY, Resource
from fulcrum.kube import MERGE

OWNER = Owner(name="front", namespace="team", uid="u", kind="InferenceGateway")


def spec(**model: Any) -> InferenceGatewaySpec:
    return msgspec.convert({"models": [{"name": "m", "backends": [{"cluster": "c"}], **model}]}, InferenceGatewaySpec)


def made(spec: InferenceGatewaySpec) -> dict[str, Manifest]:
    return {each["kind"]: each for each in front_children(OWNER, spec, Installation(), live_replicas=None)}


def test_a_front_may_read_its_own_object_and_mounts_its_keys() -> None:
    children = made(spec(auth={"secretName": "keys"}))
    (rule,) = children["Role"]["rules"]
    assert rule == {
        "apiGroups": ["fulcrum.dev"],
        "resources": ["inferencegateways"],
        "resourceNames": ["front"],
        "verbs": ["list", "watch"],
    }
    pod = children["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "api-keys-0", "secret": {"secretName": "keys"}} in pod["volumes"]
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "api-keys-0")
    config = msgspec.json.decode(pod["containers"][0]["env"][0]["value"], type=FrontConfig)
    assert config.api_keys_directories == {"keys": mount["mountPath"]}
    assert children["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_pods_of_a_front_are_none_of_a_cluster_and_a_model_restarts_none() -> None:
    deployment = made(spec())["Deployment"]
    assert "fulcrum.dev/cluster" not in deployment["spec"]["template"]["metadata"]["labels"]
    assert made(spec(aliases=["other"], fallback=[{"cluster": "d"}]))["Deployment"] == deployment


def gateway(name: str, *backends: dict[str, Any]) -> Manifest:
    models = [{"name": "m", "backends": list(backends)}]
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": name},
        "spec": {"models": models},
    }


@pytest.mark.integration
async def test_it_is_kept_and_told(cluster: Cluster) -> None:
    path = INFERENCE_GATEWAY.collection(cluster.namespace)

    async def read(resource: Resource, name: str) -> Manifest:
        return await cluster.api.get(resource.path((cluster.namespace, name)))

    async def reason(name: str, kind: str) -> str:
        found = await read(INFERENCE_GATEWAY, name)
        return next(each["reason"] for each in found["status"]["conditions"] if each["type"] == kind)

    with Operator(cluster.server):
        await cluster.api.create(path, gateway("one", {"cluster": "c"}))
        await cluster.api.create(path, gateway("two", {"cluster": "none"}))

        async def missing() -> bool:
            return {await reason(name, "Degraded") for name in ("one", "two")} == {"ClusterMissing"}

        await eventually(missing)
        await cluster.apply()

        async def found() -> bool:
            served = (await read(INFERENCE_GATEWAY, "one"))["status"]["clusters"][0]
            assert served["endpoint"].startswith("http://")
            return await reason("two", "Degraded") == "ClusterMissing"

        await eventually(found)
        for name in ("one-front", "two-front"):
            assert (await read(DEPLOYMENT, name))["spec"]["replicas"] == 2
        status = DEPLOYMENT.path((cluster.namespace, "one-front"), "status")
        await cluster.api.patch(status, {"status": {"replicas": 2, "readyReplicas": 2}}, content_type=MERGE)

        async def available() -> bool:
            return await reason("one", "Available") == "Ready" and await reason("two", "Available") != "Ready"

        await eventually(available)
        events = (await cluster.api.get(EVENT.collection(cluster.namespace)))["items"]
        about = [each["involvedObject"] for each in events]
        assert {each["name"] for each in about if each["kind"] == "InferenceGateway"} == {"one", "two"}
        before = (await read(INFERENCE_GATEWAY, "one"))["metadata"]["resourceVersion"]
        await cluster.server.writes_at_rest(seconds=2, most=50)
        assert (await read(INFERENCE_GATEWAY, "one"))["metadata"]["resourceVersion"] == before
