"""Names that others have, evictions, nodes that are gone: the operator as a process against a real API server."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.controller.cluster import Agent, Cluster, Operator, eventually
from tests.machine import deadline_seconds

from fulcrum.api.device_fault import DeviceFault, said
from fulcrum.api.names import Role
from fulcrum.api.worker import EXIT_DEVICE_FAILED, LoadReport, Stage
from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import DISRUPTION_BUDGET, POD, SERVICE
from fulcrum.controller.nodes import GONE_SECONDS, NODE
from fulcrum.kube import ApiError

pytestmark = pytest.mark.integration


async def bind(cluster: Cluster, pod: str, node: str) -> None:
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    await cluster.api.create(POD.path((cluster.namespace, pod), "binding"), body)


async def make_node(cluster: Cluster, name: str) -> None:
    await cluster.api.create(NODE.path(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await cluster.api.patch(NODE.path(("", name), "status"), {"status": {"conditions": [ready]}})


async def budget(cluster: Cluster) -> Manifest:
    found = await cluster.kube.get(DISRUPTION_BUDGET, cluster.namespace, "c-workers")
    assert found is not None
    spec: Manifest = found["spec"]
    return spec


async def evict(cluster: Cluster, pod: str) -> int:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": cluster.namespace}}
    try:
        await cluster.api.create(POD.path((cluster.namespace, pod), "eviction"), body)
    except ApiError as error:
        return error.code
    return 201


async def replaced(cluster: Cluster, name: str, uid: str, *, seconds: float = 60.0) -> Manifest:
    async def found() -> Any:
        pod = (await cluster.pods()).get(name)
        return pod if pod is not None and pod["metadata"]["uid"] != uid else None

    return await eventually(found, seconds=seconds)


async def test_two_clusters_whose_names_make_the_same_pod_names(cluster: Cluster) -> None:
    """Cluster `c` with pool `p-x` and cluster `c-p` with pool `x`: each has its own workers."""
    pools = [{"name": "p-x", "accelerator": "cpu", "workers": {"max": 2}}]
    other = Cluster(cluster.server, cluster.api, cluster.namespace)
    other.name = "c-p"
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(pools=pools)

        async def two(of: Cluster) -> Any:
            pods = await of.pods()
            return pods if len(pods) == 2 else None

        first = await eventually(lambda: two(cluster))
        await other.apply(pools=[{"name": "x", "accelerator": "cpu", "workers": {"max": 2}}])
        second = await eventually(lambda: two(other))
        assert sorted(first) == ["c-p-x-0", "c-p-x-1"]
        assert sorted(second) == ["c-p-x-2", "c-p-x-3"]
        for name in first:
            await cluster.set_pod_status(name)
        for name in second:
            await other.set_pod_status(name)
    uids = {name: pod["metadata"]["uid"] for name, pod in {**first, **second}.items()}
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:  # it remembers nothing

        async def looked() -> bool:
            try:
                page = operator.metrics()
            except (AssertionError, OSError):
                return False  # not started yet
            return 'fulcrum_operator_reconciles_total{result="ok"} ' in page and "operator_clusters 2.0" in page

        await eventually(looked)
        for _ in range(2):
            await cluster.server.writes_at_rest(seconds=2, most=4)
            now = {**await cluster.pods(), **await other.pods()}
            assert {name: pod["metadata"]["uid"] for name, pod in now.items()} == uids


async def test_a_service_that_is_not_ours_is_left_alone_and_named(cluster: Cluster) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "c-gateway", "namespace": cluster.namespace, "labels": {"mine": "yes"}},
        "spec": {"ports": [{"port": 1234}]},
    }
    made = await cluster.kube.create(SERVICE, service)
    assert made is not None
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()

        async def named() -> bool:
            degraded = await cluster.condition("Degraded")
            return degraded["reason"] == "NameTaken" and "kubectl delete service c-gateway" in degraded["message"]

        await eventually(named)
        there = await cluster.kube.get(SERVICE, cluster.namespace, "c-gateway")
        assert there is not None
        assert (there["metadata"]["labels"], there["metadata"].get("ownerReferences")) == ({"mine": "yes"}, None)
        assert len(await cluster.pods()) == 4  # the rest goes on
        await cluster.kube.delete(SERVICE, cluster.namespace, "c-gateway", uid=made["metadata"]["uid"])

        async def healed() -> bool:
            ours = await cluster.kube.get(SERVICE, cluster.namespace, "c-gateway")
            return ours is not None and (await cluster.condition("Degraded"))["status"] == "False"

        await eventually(healed)


async def test_evictions_go_one_by_one_and_a_drain_ends(cluster: Cluster) -> None:
    """Of `workers: {min: 2, max: 8}` two are wanted now: one may go, the next when its replacement serves."""
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"min": 2, "max": 8}}]
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(pools=pools, balance={"mode": "Auto"})
        await cluster.settle(2)

        async def follows() -> bool:
            return bool((await budget(cluster))["minAvailable"] == 1)

        await eventually(follows)
        assert (await budget(cluster))["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        for name, other in (("c-p-0", "c-p-1"), ("c-p-1", "c-p-0")):
            uid = (await cluster.pods())[name]["metadata"]["uid"]
            assert await evict(cluster, name) == 201
            assert await evict(cluster, other) == 429
            # Its kubelet says that it has ended; without a node the API server does.
            await cluster.kube.delete(POD, cluster.namespace, name, uid=uid, grace_seconds=0)
            await replaced(cluster, name, uid)
            assert await evict(cluster, other) == 429
            await cluster.set_pod_status(name)


async def test_a_worker_whose_node_is_gone_is_replaced(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        node = f"n-{cluster.namespace}"
        await make_node(cluster, node)
        uid = (await cluster.pods())["c-p-3"]["metadata"]["uid"]
        await bind(cluster, "c-p-3", node)
        await cluster.api.delete(NODE.path(("", node)))
        await cluster.set_pod_status("c-p-3", ready=False)
        began = time.monotonic()

        async def said() -> bool:
            return ("NodeLost", "Deleted worker c-p-3: its node does not answer any more or is gone.") in (
                await cluster.events()
            )

        await replaced(cluster, "c-p-3", uid)
        seconds = time.monotonic() - began
        print(f"node deleted -> replacement created: {seconds:.1f} s")
        assert GONE_SECONDS <= seconds < deadline_seconds(60)
        await eventually(said)


async def test_a_worker_whose_gpu_failed_is_made_anew_away_from_its_node(cluster: Cluster) -> None:
    """Whichever operator makes it: the node stands in the status before the Pod goes."""
    node = f"n-{cluster.namespace}"
    message = f"{said(DeviceFault('GPU is lost', '0000:3b:00'))}vLLM ended with exit code 1 while serving"

    async def named() -> Any:
        return (await cluster.status()).get("failedGpus")

    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        await make_node(cluster, node)
        uid = (await cluster.pods())["c-p-3"]["metadata"]["uid"]
        await bind(cluster, "c-p-3", node)
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"exitCode": EXIT_DEVICE_FAILED, "message": message, "finishedAt": since}
        of_image = {"image": "i", "imageID": "i", "ready": False}
        container = {"name": "worker", "restartCount": 1, "lastState": {"terminated": ended}, **of_image}
        await cluster.set_pod_status("c-p-3", ready=False, containerStatuses=[container])
        (gpu,) = await eventually(named)

        async def goes() -> Any:
            return "deletionTimestamp" in (await cluster.pods())["c-p-3"]["metadata"]

        await eventually(goes)
    assert (gpu["node"], gpu["gpu"], gpu["worker"]) == (node, "0000:3b:00", "c-p-3")
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.kube.delete(POD, cluster.namespace, "c-p-3", uid=uid, grace_seconds=0)
        new = await replaced(cluster, "c-p-3", uid)
        (term,) = new["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (field,) = term["preference"]["matchFields"]
        assert (field["operator"], field["values"]) == ("NotIn", [node])
        await cluster.set_pod_status("c-p-3")
        assert await named() == [gpu]
    told = [message for reason, message in await cluster.events() if reason == "GpuFailed"]
    assert sorted(told) == [
        "Deleted worker c-p-3: a GPU of its node failed.",
        f"GPU 0000:3b:00 of node {node} failed under c-p-3 (GPU is lost). New workers avoid the node.",
    ]


@pytest.mark.parametrize(("workers", "ratio"), [(2, {"prefill": 1, "decode": 1}), (4, {"prefill": 1, "decode": 3})])
async def test_an_eviction_of_the_only_worker_of_a_role_leaves_the_role_served(
    cluster: Cluster, workers: int, ratio: dict[str, int]
) -> None:
    """In Manual, where the roles are set by hand."""
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(workers=workers, balance={"mode": "Manual", "ratio": ratio})
        await cluster.settle(workers)
        (only,) = [name for name, role in (await cluster.roles()).items() if role == "prefill"]
        node = f"n-{cluster.namespace}"
        await make_node(cluster, node)
        # So that it ends only when its kubelet, which is the test, says so.
        await bind(cluster, only, node)
        assert await evict(cluster, only) == 201
        began = time.monotonic()

        async def served() -> bool:
            roles = {role for name, role in (await cluster.roles()).items() if name != only}
            return bool({"prefill", "mixed"} & roles) and (await cluster.condition("Available"))["status"] == "True"

        await eventually(served, seconds=5)
        seconds = time.monotonic() - began
        print(f"{ratio}: the role is served {seconds:.2f} s after the eviction of its only worker")
        for name in sorted((await cluster.roles()).keys() - {only}):
            assert await evict(cluster, name) == 429
        uid = (await cluster.pods())[only]["metadata"]["uid"]
        await cluster.kube.delete(POD, cluster.namespace, only, uid=uid, grace_seconds=0)
        await replaced(cluster, only, uid)

        async def says_why_evictions_wait() -> bool:
            return "a node drain waits for it" in (await cluster.condition("Progressing"))["message"]

        await eventually(says_why_evictions_wait)
        await cluster.set_pod_status(only)

        async def as_wanted() -> bool:
            return bool((await cluster.status())["ratio"] == f"{ratio['prefill']}P:{ratio['decode']}D")

        await eventually(as_wanted)
        assert "RoleEmpty" in {reason for reason, _ in await cluster.events()}


async def test_two_clusters_that_are_made_at_once_share_no_name(cluster: Cluster) -> None:
    """Both want the Pods `c-p-x-0` and `c-p-x-1`, at the same instant: each gets two of its own, and all is quiet."""
    pools = {"c": "p-x", "c-p": "x"}
    both = [Cluster(cluster.server, cluster.api, cluster.namespace) for _ in pools]
    for each, name in zip(both, pools, strict=True):
        each.name = name
    with Operator(cluster.server, "--namespace", cluster.namespace):
        wanted = [[{"name": pool, "accelerator": "cpu", "workers": {"max": 2}}] for pool in pools.values()]
        await asyncio.gather(*(each.apply(pools=own) for each, own in zip(both, wanted, strict=True)))

        async def two_each() -> bool:
            return [len(await each.pods()) for each in both] == [2, 2]

        await eventually(two_each)
        for each in both:
            for name in await each.pods():
                await each.set_pod_status(name)
        await cluster.server.writes_at_rest(seconds=2, most=4)
        for each in both:
            assert (await each.condition("Degraded"))["reason"] != "NameTaken"
            assert sorted((await each.roles()).values()) == ["decode", "prefill"]
        names = [name for each in both for name in await each.pods()]
        assert sorted(names) == [f"c-p-x-{number}" for number in range(4)]


async def test_kubectl_drain_of_a_node_with_all_workers_ends(cluster: Cluster) -> None:
    """The test plays kubelet and scheduler; at every instant at least one of the two workers serves."""
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"min": 2, "max": 8}}]
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(pools=pools, balance={"mode": "Auto"})
        await cluster.settle(2)
        node = f"n-{cluster.namespace}"
        await make_node(cluster, node)
        old = await cluster.pods()
        for name in old:
            await bind(cluster, name, node)

        async def guarded() -> bool:
            return bool((await budget(cluster))["minAvailable"] == 1)

        await eventually(guarded)
        began = time.monotonic()
        options = (
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--timeout={deadline_seconds(110):.0f}s",
        )
        drain = asyncio.create_task(asyncio.to_thread(cluster.server.kubectl, "drain", node, *options, check=False))
        fewest = 2
        while not drain.done():
            pods = await cluster.pods()
            serving = [
                name
                for name, pod in pods.items()
                if "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("conditions")
            ]
            fewest = min(fewest, len(serving))
            for name, pod in pods.items():
                uid = pod["metadata"]["uid"]
                if "deletionTimestamp" in pod["metadata"]:
                    await cluster.kube.delete(POD, cluster.namespace, name, uid=uid, grace_seconds=0)
                elif name not in serving:
                    await cluster.set_pod_status(name)
            await asyncio.sleep(0.2)
        result = drain.result()
        print(f"kubectl drain of two workers: {time.monotonic() - began:.1f} s, fewest that served: {fewest}")
        assert result.returncode == 0, result.stderr
        assert fewest == 1
        now = await cluster.pods()
        assert not {pod["metadata"]["uid"] for pod in now.values()} & {pod["metadata"]["uid"] for pod in old.values()}
        await cluster.server.writes_at_rest(seconds=2, most=4)
        assert len(await cluster.pods()) == 2


class StartingAgent(Agent):
    """An agent whose engine loads its weights."""

    async def load(self, _: web.Request) -> web.Response:
        report = LoadReport(role=Role.MIXED, role_epoch=99, ready=False, draining=False, stage=Stage.WEIGHTS)
        return web.Response(body=msgspec.json.encode(report))


async def test_a_late_start_is_a_fault_unless_its_agent_says_that_it_goes_on(cluster: Cluster) -> None:
    late = (datetime.now(UTC) - timedelta(minutes=40)).strftime("%Y-%m-%dT%H:%M:%SZ")
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply(workers=1)

        async def made() -> bool:
            return len(await cluster.pods()) == 1

        await eventually(made)
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": late}
        await cluster.set_pod_status("c-p-0", conditions=[unready])
        (pod,) = (await cluster.pods()).values()

        async def degraded(status: str, reason: str) -> bool:
            found = await cluster.condition("Degraded")
            return bool((found["status"], found["reason"]) == (status, reason))

        await eventually(lambda: degraded("True", "ProgressDeadlineExceeded"))
        async with StartingAgent().serve(pod["status"]["podIP"]):
            await eventually(lambda: degraded("False", "Healthy"))
        await eventually(lambda: degraded("True", "ProgressDeadlineExceeded"))
