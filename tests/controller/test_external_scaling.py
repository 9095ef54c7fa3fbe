"""Mode External: `/scale` of each role, as an HPA and `kubectl scale` use it, and what the operator makes of it."""

from __future__ import annotations

import json
import math
import subprocess
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.controller.cluster import (
    REPOSITORY,
    ApiServer,
    Cluster,
    Kubelet,
    Operator,
    client_of,
    eventually,
    running_api_server,
)

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import INFERENCE_SCALE, POD
from fulcrum.kube import Api, ApiError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POOL = {"name": "p", "accelerator": "cpu", "roles": ["prefill", "decode"], "workers": {"min": 2, "max": 6}}
EXTERNAL: dict[str, Any] = {"pools": [POOL], "balance": {"mode": "External", "flip": {"minDwell": "0s"}}}
# As `system:controller:horizontal-pod-autoscaler` of Kubernetes, and the right to see the Pods.
HPA_RULES = [
    {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]


async def scales(cluster: Cluster) -> dict[str, Manifest]:
    found = await cluster.kube.list(INFERENCE_SCALE, cluster.namespace, {})
    return {scale["metadata"]["name"]: scale for scale in found}


async def has_roles(cluster: Cluster, **counts: int) -> bool:
    roles = list((await cluster.roles()).values())
    return {role: roles.count(role) for role in set(roles)} == counts


async def with_status(cluster: Cluster) -> dict[str, Manifest]:
    """The two InferenceScales, once the operator has said something about them; before, there are none."""
    found = await scales(cluster)
    return found if len(found) == 2 and all("status" in scale for scale in found.values()) else {}


async def limited(cluster: Cluster, name: str) -> tuple[str, str, str]:
    (condition,) = (await scales(cluster))[name]["status"]["conditions"]
    return condition["status"], condition["reason"], condition["message"]


class Autoscaler:
    """What the HPA controller does: read the scale, count the Pods behind its selector, write the number it wants."""

    def __init__(self, cluster: Cluster) -> None:
        server, namespace = cluster.server, cluster.namespace
        account = {"kind": "ServiceAccount", "name": "hpa", "namespace": namespace}
        names = {"name": f"hpa-{namespace}"}
        objects = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hpa", "namespace": namespace}},
            {"kind": "ClusterRole", "metadata": names, "rules": HPA_RULES},
            {
                "kind": "ClusterRoleBinding",
                "metadata": names,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **names},
                "subjects": [account],
            },
        ]
        file = server.folder / f"hpa-{namespace}.yaml"
        file.write_text(
            yaml.safe_dump_all([{"apiVersion": "rbac.authorization.k8s.io/v1", **each} for each in objects])
        )
        server.kubectl("apply", "-f", str(file))
        token = server.kubectl("create", "token", "hpa", "-n", namespace).stdout.strip()
        config = yaml.safe_load(server.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        kubeconfig = server.folder / f"hpa-{namespace}-kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        self._namespace = namespace
        self.api = Api(kubeconfig)

    async def scale(self, name: str, metric: float, *, target: float) -> tuple[int, set[str]]:
        """Scale `name` for a metric of `metric` in all at `target` for each Pod; returns the number and the Pods."""
        path = INFERENCE_SCALE.path((self._namespace, name), "scale")
        while True:
            scale = await self.api.call("GET", path)
            assert scale["kind"] == "Scale"
            assert scale["spec"]["replicas"] > 0, "an HPA does nothing about a target with none"
            selector = {"labelSelector": scale["status"]["selector"]}
            pods = await self.api.call("GET", POD.collection(self._namespace), params=selector)
            scale["spec"]["replicas"] = math.ceil(metric / target)
            try:
                written = await self.api.call("PUT", path, body=scale)
            except ApiError as error:
                if error.code != HTTPStatus.CONFLICT:  # its status was written meanwhile: read again, as an HPA does
                    raise
            else:
                return written["spec"]["replicas"], {pod["metadata"]["name"] for pod in pods["items"]}


async def test_an_hpa_moves_workers_between_roles_through_scale(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        async with Kubelet(cluster).run():
            await cluster.apply(**EXTERNAL)
            await eventually(lambda: has_roles(cluster, prefill=1, decode=1))
            made = await eventually(lambda: with_status(cluster))
            assert set(made) == {"c-p-prefill", "c-p-decode"}
            assert {scale["spec"]["replicas"] for scale in made.values()} == {1}
            owner = made["c-p-prefill"]["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceCluster", "c", True)

            autoscaler = Autoscaler(cluster)
            try:
                assert await autoscaler.scale("c-p-decode", 39.0, target=10.0) == (4, {"c-p-1"})
                await eventually(lambda: has_roles(cluster, prefill=1, decode=4))
                uids = {pod["metadata"]["uid"] for pod in (await cluster.pods()).values()}
                # Two autoscalers never write at one moment; seen together, their numbers are a shift and no more.
                await cluster.patch({"metadata": {"annotations": {"fulcrum.dev/paused": "true"}}})
                assert await autoscaler.scale("c-p-prefill", 30.0, target=10.0) == (3, {"c-p-0"})
                number, seen = await autoscaler.scale("c-p-decode", 20.0, target=10.0)
                assert (number, len(seen)) == (2, 4)
                await cluster.patch({"metadata": {"annotations": {"fulcrum.dev/paused": None}}})
                await eventually(lambda: has_roles(cluster, prefill=3, decode=2))
            finally:
                await autoscaler.api.close()
            pods = await cluster.pods()
            assert {pod["metadata"]["uid"] for pod in pods.values()} == uids, "by flips: no worker came or went"

            async def events_say_why() -> bool:
                reasons = [reason for reason, _ in await cluster.events()]
                # The first two are the cluster's own; then three workers for decode, and two flips.
                return (reasons.count("WorkerCreated"), reasons.count("ScaleRequested")) == (2, 5)

            await eventually(events_say_why)

            async def status_follows() -> bool:
                status = (await scales(cluster))["c-p-prefill"]["status"]
                return (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (3, 3, 3)

            await eventually(status_follows)


async def test_kubectl_scale_within_bounds_that_are_said(cluster: Cluster) -> None:
    kubectl, namespace = cluster.server.kubectl, f"--namespace={cluster.namespace}"
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        async with Kubelet(cluster).run():
            await cluster.apply(**EXTERNAL)
            await eventually(lambda: has_roles(cluster, prefill=1, decode=1))
            await eventually(lambda: with_status(cluster))
            kubectl("scale", namespace, "isc/c-p-decode", "--replicas=9")
            await eventually(lambda: has_roles(cluster, prefill=1, decode=5))

            async def says_so() -> bool:
                return (await limited(cluster, "c-p-decode"))[0] == "True"

            await eventually(says_so)
            assert await limited(cluster, "c-p-decode") == (
                "True",
                "OutOfBounds",
                "The InferenceScales of pool p ask for 10 workers in all; workers.max is 6 workers. "
                "They get it in the proportion that they ask for.",
            )
            assert (await limited(cluster, "c-p-prefill"))[:2] == ("False", "WithinBounds")
            table = kubectl("get", namespace, "isc", "c-p-decode", "--no-headers").stdout.split()
            assert table[:6] == ["c-p-decode", "c", "p", "decode", "9", "5"]
            assert 'pool="p",role="decode",state="asked"} 9.0' in operator.metrics()
            refused = kubectl(
                "patch", namespace, "isc/c-p-decode", "--type=merge", "-p", '{"spec":{"role":"prefill"}}', check=False
            )
            assert "cannot be changed" in refused.stderr
            kubectl("scale", namespace, "isc/c-p-decode", "--current-replicas=9", "--replicas=1")
            await eventually(lambda: has_roles(cluster, prefill=1, decode=1))

            # KEDA asks for none in a calm: what serves stays, and the number that it wrote is left alone.
            kubectl("scale", namespace, "isc/c-p-decode", "--replicas=0")

            async def kept() -> bool:
                scale = (await scales(cluster))["c-p-decode"]
                aimed = scale["status"]["desiredReplicas"]
                return (scale["spec"]["replicas"], aimed, scale["status"]["conditions"][0]["status"]) == (0, 1, "True")

            await eventually(kept)
            assert await has_roles(cluster, prefill=1, decode=1)


async def test_scales_begin_with_what_stands_and_go_with_the_mode(cluster: Cluster) -> None:
    pools = {"pools": [POOL]}
    with Operator(cluster.server, "--namespace", cluster.namespace):
        async with Kubelet(cluster).run():
            ratio = {"prefill": 2, "decode": 3}
            await cluster.apply(**pools, balance={"mode": "Manual", "ratio": ratio})
            await eventually(lambda: has_roles(cluster, prefill=2, decode=3))
            before = {pod["metadata"]["uid"] for pod in (await cluster.pods()).values()}
            await cluster.apply(**EXTERNAL)

            async def made() -> bool:
                return {name: each["spec"]["replicas"] for name, each in (await scales(cluster)).items()} == {
                    "c-p-prefill": 2,
                    "c-p-decode": 3,
                }

            await eventually(made)
            await cluster.apply(**pools, balance={"mode": "Manual", "ratio": ratio})

            async def gone() -> bool:
                return await scales(cluster) == {}

            await eventually(gone)
            # A cluster that may sleep has none either: an autoscaler has nothing to hold against the sleep.
            await cluster.apply(
                pools=[{**POOL, "workers": {"min": 0, "max": 6}}], balance={"mode": "Auto", "idleAfter": "1h"}
            )
            refused = cluster.server.kubectl(
                "patch", f"--namespace={cluster.namespace}", "ic/c", "--type=merge",
                "-p", '{"spec": {"balance": {"mode": "External"}}}', check=False,
            )  # fmt: skip
            assert "in External an HPA or KEDA sets the number of workers" in refused.stderr
            assert await gone()
            assert {pod["metadata"]["uid"] for pod in (await cluster.pods()).values()} == before


async def test_an_object_with_the_name_of_a_scale_is_left_alone(cluster: Cluster) -> None:
    foreign = {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceScale",
        "metadata": {"name": "c-p-decode", "namespace": cluster.namespace},
        "spec": {"cluster": "x", "pool": "p", "role": "decode", "replicas": 4},
    }
    assert await cluster.kube.create(INFERENCE_SCALE, foreign) is not None
    with Operator(cluster.server, "--namespace", cluster.namespace):
        async with Kubelet(cluster).run():
            await cluster.apply(**EXTERNAL)

            async def says_so() -> bool:
                condition = await cluster.condition("Degraded")
                return condition["reason"] == "NameTaken" and "InferenceScale c-p-decode" in condition["message"]

            await eventually(says_so)
            await eventually(lambda: has_roles(cluster, prefill=1, decode=1))
            assert "status" not in (await scales(cluster))["c-p-decode"]


async def test_without_the_crd_what_stands_is_held_until_it_is_there(tmp_path: Path) -> None:
    """A new operator with the CRDs of an older release serves every cluster of another mode, too."""
    with running_api_server(tmp_path) as server:
        server.install()
        server.kubectl("delete", "crd", "inferencescales.fulcrum.dev")
        server.kubectl("create", "namespace", "ml")
        api = client_of(server)
        cluster = Cluster(server, api, "ml")
        try:
            with Operator(server, "--namespace", "ml"):
                async with Kubelet(cluster).run():
                    await cluster.apply(pools=[POOL])
                    await eventually(lambda: has_roles(cluster, prefill=3, decode=3))
                    await cluster.apply(**EXTERNAL)

                    async def says_so() -> bool:
                        condition = await cluster.condition("Progressing")
                        return condition["reason"] == "ReconcileFailed" and "inferencescales" in condition["message"]

                    await eventually(says_so)
                    assert await has_roles(cluster, prefill=3, decode=3)
                    server.kubectl("apply", "-k", str(REPOSITORY / "crds"))

                    async def made() -> bool:
                        return len(await scales(cluster)) == 2

                    await eventually(made)
                    await eventually(lambda: has_roles(cluster, prefill=3, decode=3))
        finally:
            await api.close()


def test_kubectl_explains_it_and_lists_it_by_its_short_name(api_server: ApiServer, tmp_path: Path) -> None:
    # What kubectl remembers of the server is from before the CRD.
    explained = api_server.kubectl("--cache-dir", str(tmp_path), "explain", "isc.spec.replicas").stdout
    assert "only field to change" in explained
    found = json.loads(api_server.kubectl("get", "--raw", "/apis/fulcrum.dev/v1alpha1").stdout)
    names = {each["name"] for each in found["resources"]}
    assert {"inferencescales", "inferencescales/scale", "inferencescales/status"} <= names


@pytest.mark.parametrize(("verb", "allowed"), [("update", "yes"), ("delete", "no")])
def test_an_editor_of_the_namespace_may_scale_and_no_more(api_server: ApiServer, verb: str, allowed: str) -> None:
    api_server.kubectl("create", "namespace", f"edit-{verb}")
    api_server.kubectl("create", "rolebinding", "e", "--clusterrole=edit", "--user=ed", "-n", f"edit-{verb}")
    resource = "inferencescales.fulcrum.dev/scale" if verb == "update" else "inferencescales.fulcrum.dev"
    asked: subprocess.CompletedProcess[str] = api_server.kubectl(
        "auth", "can-i", verb, resource, "--as=ed", "-n", f"edit-{verb}", check=False
    )
    assert asked.stdout.strip() == allowed
