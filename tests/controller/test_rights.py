"""Rights granted against rights used: what an API server recorded of operator and gateway, beside their roles."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.cluster import (
    BIN,
    REPOSITORY,
    Agent,
    ApiServer,
    Cluster,
    Operator,
    client_of,
    eventually,
    running_api_server,
)
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayConfig
from fulcrum.controller.kube import INFERENCE_GATEWAY, INFERENCE_SCALE, LEADER_WORKER_SET

pytestmark = pytest.mark.integration

Right = tuple[str, str, str]
"""Group, resource (with its subresource), verb."""
VERBS = {"POST": ("create",), "PUT": ("update",), "APPLY": ("patch", "create")}
"""Verbs of a request; applying an object that is not there yet takes the right to create it."""
NOT_CALLED: dict[Right, str] = {
    ("fulcrum.dev", "inferenceclusters/finalizers", "update"): "asked for by admission where owner references block",
    ("fulcrum.dev", "inferencegateways/finalizers", "update"): "the same, of an InferenceGateway's children",
    ("", "pods", "get"): "whose Pod it is that has the name of a worker already",
    ("", "nodes", "get"): "the node of a Pod that does not end",
    ("", "persistentvolumeclaims", "get"): "whether all workers can mount the claim of a KV pool",
    ("scheduling.volcano.sh", "podgroups", "create"): "all Pods of a worker at once: `test_gang.py`",
    ("scheduling.volcano.sh", "podgroups", "delete"): "the same, with the worker",
    ("batch", "jobs", "get"): "the download of weights ahead of workers: `test_preloads.py`",
    ("batch", "jobs", "create"): "the same",
    ("", "configmaps", "get"): "what a spec names: `test_pool_profile.py`, `test_cluster_model_config.py`",
}
"""Rights that no call of a first installation shows, and what they are for."""


def granted(documents: list[dict[str, Any]]) -> set[Right]:
    return {
        (group, resource, verb)
        for document in documents
        if document["kind"] in ("Role", "ClusterRole") and "aggregate" not in str(document["metadata"].get("labels"))
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def called(server: ApiServer, account: str) -> set[Right]:
    """What a service account has asked the server for, by the server's own count."""
    found = set()
    for line in server.kubectl("get", "--raw", "/metrics").stdout.splitlines():
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if not line.startswith("fulcrum_apiserver_client_requests_total") or not labels.get("resource"):
            continue
        if labels["user"] == f"system:serviceaccount:{account}" and labels["code"] != "403":
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            verbs = VERBS.get(labels["verb"], (labels["verb"].lower(),))
            found |= {(labels["group"], resource, verb) for verb in verbs[: 1 if labels["subresource"] else None]}
    return found


def manifests(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [BIN / "kubectl", "kustomize", str(REPOSITORY / "manifests" / folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=deadline_seconds(120),
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with running_api_server(tmp_path) as started:
        started.install()
        crds = tmp_path / "foreign.yaml"
        crds.write_text(yaml.safe_dump_all(foreign_crds()))
        started.kubectl("apply", "-f", str(crds))
        yield started


def kubeconfig_of(server: ApiServer, namespace: str, account: str) -> Path:
    token = server.kubectl("create", "token", account, "-n", namespace, "--duration=1h").stdout.strip()
    config = yaml.safe_load(server.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = server.folder / f"{account}-kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def start_gateway(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen([BIN / "fulcrum", "gateway"], env=environment, stdout=stream, stderr=stream)


async def live(cluster: Cluster) -> None:
    """Let an operator do all that it does to a cluster: make, flip, drain, delete, repair."""
    await cluster.apply()
    await cluster.settle()
    await cluster.patch({"spec": {"balance": {"ratio": {"prefill": 1, "decode": 3}}}})

    async def flipped() -> bool:
        return (await cluster.roles())["c-p-1"] == "decode"

    await eventually(flipped)
    cluster.server.kubectl("-n", cluster.namespace, "scale", "deployment/c-gateway", "--replicas=5")
    for kind in ("networkpolicy/c-workers", "pdb/c-workers"):
        cluster.server.kubectl("-n", cluster.namespace, "delete", kind)
    leaving = (await cluster.pods())["c-p-3"]["status"]["podIP"]
    async with Agent().serve(leaving):
        await cluster.apply(workers=3)

        async def gone() -> bool:
            return "c-p-3" not in await cluster.pods()

        await eventually(gone)
    await scale(cluster)
    await serve_a_front(cluster)
    await take_several_nodes(cluster)


async def scale(cluster: Cluster) -> None:
    """From mode External, with its InferenceScales, back to the one before."""

    async def count_is(wanted: int) -> bool:
        return len(await cluster.kube.list(INFERENCE_SCALE, cluster.namespace, {})) == wanted

    for mode, wanted in (("External", 2), ("Manual", 0)):
        await cluster.patch({"spec": {"balance": {"mode": mode}}})
        await eventually(lambda wanted=wanted: count_is(wanted))


async def serve_a_front(cluster: Cluster) -> None:
    """An InferenceGateway gets its children and its status."""
    manifest = {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": "front"},
        "spec": {"models": [{"name": "m", "backends": [{"cluster": "c"}]}]},
    }
    await cluster.api.create(INFERENCE_GATEWAY.collection(cluster.namespace), manifest)
    path = INFERENCE_GATEWAY.path((cluster.namespace, "front"))

    async def told() -> bool:
        return bool((await cluster.api.get(path)).get("status", {}).get("conditions"))

    await eventually(told)


async def take_several_nodes(cluster: Cluster) -> None:
    """A worker on two nodes comes, and goes."""
    pool = {"name": "big", "accelerator": "H100-SXM-80GB", "parallelism": {"tensor": 16}, "gpu": {"perNode": 8}}
    small = {"name": "p", "accelerator": "cpu", "workers": {"max": 3}}

    async def count_is(wanted: int) -> bool:
        return len(await cluster.kube.list(LEADER_WORKER_SET, cluster.namespace, {})) == wanted

    for count in (1, 0):
        mixed = {**pool, "roles": ["mixed"], "workers": {"max": count}}
        await cluster.patch({"spec": {"pools": [small, mixed]}})
        await eventually(lambda count=count: count_is(count))


async def test_the_operators_rights_are_those_that_it_uses(server: ApiServer) -> None:
    server.kubectl("create", "namespace", "ml")
    client = client_of(server)
    lease = ("--lease-duration", "15s", "--lease", "fulcrum-system/fulcrum-operator")
    try:
        with Operator(server, *lease, pod="first"):
            await live(Cluster(server, client, "ml"))
        # The first one took the Lease of the manifests over. One that somebody deleted is made anew.
        server.kubectl("-n", "fulcrum-system", "delete", "lease", "fulcrum-operator")
        with Operator(server, *lease, pod="second") as second:

            async def leads() -> bool:
                return "fulcrum_operator_leader 1.0" in second.metrics()

            await eventually(leads)
            await asyncio.sleep(3)  # a renewal
    finally:
        await client.close()
    rights, used = granted(manifests("rbac")), called(server, "fulcrum-system:fulcrum-operator")
    print("used:", *(" ".join(right) for right in sorted(used)), sep="\n  ")
    assert used - rights == set(), "called without a right: the operator fails there"
    assert rights - used - set(NOT_CALLED) == set(), "granted and never used: remove it from manifests/rbac"


async def test_the_gateways_rights_are_those_that_it_uses(server: ApiServer, tmp_path: Path) -> None:
    server.kubectl("create", "namespace", "ml")
    client = client_of(server)
    try:
        with Operator(server, "--namespace", "ml"):
            cluster = Cluster(server, client, "ml")
            await cluster.apply()
            await cluster.settle()
    finally:
        await client.close()
    role = yaml.safe_load(server.kubectl("-n", "ml", "get", "role", "c-gateway", "-o", "yaml").stdout)
    config = GatewayConfig(cluster="c", served_name="c", model="m")
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig_of(server, "ml", "c-gateway")),
        "FULCRUM_GATEWAY_CONFIG": msgspec.json.encode(config).decode(),
        "POD_IP": "127.66.1.9",
        "POD_NAME": "c-gateway-0",
        "POD_NAMESPACE": "ml",
    }
    gateway = start_gateway(environment, tmp_path / "gateway.log")
    try:

        async def watches() -> bool:
            # A watch is counted when it ends, and is in the gauge meanwhile.
            return granted([role]) == called(server, "ml:c-gateway") | {
                (group, resource, "watch")
                for group, resource in (("", "pods"), ("fulcrum.dev", "inferenceclusters"))
                for line in server.kubectl("get", "--raw", "/metrics").stdout.splitlines()
                if line.startswith("apiserver_longrunning_requests{") and f'resource="{resource}"' in line
                if float(line.rpartition(" ")[2]) > 0
            }

        await eventually(watches)
    finally:
        gateway.terminate()
        assert gateway.wait(deadline_seconds(60)) == 0


async def test_a_namespaced_install_needs_nothing_beyond_its_namespace(server: ApiServer) -> None:
    server.kubectl("create", "namespace", "inference")
    server.kubectl("apply", "-f", str(REPOSITORY / "manifests" / "operator" / "namespace.yaml"))
    installed = [
        each for each in manifests("overlays/namespaced") if each["kind"] not in ("Deployment", "NetworkPolicy")
    ]
    (server.folder / "installed.yaml").write_text(yaml.safe_dump_all(installed))
    server.kubectl("apply", "-f", str(server.folder / "installed.yaml"))
    server.operator_kubeconfig = kubeconfig_of(server, "fulcrum-system", "fulcrum-operator")
    client = client_of(server)
    lease = ("--lease-duration", "15s", "--lease", "fulcrum-system/fulcrum-operator")
    try:
        with Operator(server, "--namespace", "inference", *lease):
            await live(Cluster(server, client, "inference"))
    finally:
        await client.close()
    refused = [
        line
        for line in server.kubectl("get", "--raw", "/metrics").stdout.splitlines()
        if "serviceaccount:fulcrum-system:fulcrum-operator" in line and 'code="403"' in line
    ]
    assert refused == []
