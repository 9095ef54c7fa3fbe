"""A node whose kubelet is silent or whose object is gone: what becomes of it and of its Pods."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fulcrum.kube import ApiError
from fulcrum_local.controllers.nodes import LEASE_NAMESPACE, NodeTimes
from fulcrum_local.controllers.pods import condition
from fulcrum_local.controllers.resources import LEASES, NODES, PODS, Json, key_of
from fulcrum_local.controllers.taints import UNREACHABLE, UNSCHEDULABLE, effective_taints, eviction_due

NOW = dt.datetime(2026, 11, 21, 3, 0, tzinfo=dt.UTC)
NOW_TEXT = "2026-11-21T03:00:00Z"


def node(ready: str | None, *taints: Json, **spec: Any) -> Json:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    return {"metadata": {"name": "n"}, "spec": {"taints": list(taints), **spec}, "status": {"conditions": conditions}}


def taint(key: str, effect: str) -> Json:
    return {"key": key, "effect": effect, "timeAdded": NOW_TEXT}


OTHER = {"key": "theirs", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (node("True", OTHER), [OTHER]),
        (node("Unknown"), [taint(UNREACHABLE, "NoSchedule"), taint(UNREACHABLE, "NoExecute")]),
        (node("True", taint(UNREACHABLE, "NoExecute"), OTHER), [OTHER]),
        (node("True", unschedulable=True), [taint(UNSCHEDULABLE, "NoSchedule")]),
        (node("True", taint(UNSCHEDULABLE, "NoSchedule")), []),
        (node(None), [taint("node.kubernetes.io/not-ready", "NoSchedule")]),
        (node("False"), [taint("node.kubernetes.io/not-ready", effect) for effect in ("NoSchedule", "NoExecute")]),
    ],
)
def test_taints_follow_the_state(before: Json, after: list[Json]) -> None:
    assert effective_taints(before, now=NOW_TEXT) == after
    # What is there already keeps the time at which it was added.
    again = {**before, "spec": {**before["spec"], "taints": after}}
    assert effective_taints(again, now="2026-11-21T04:00:00Z") == after


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], 0.0),
        ([{"operator": "Exists"}], None),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}], 240.0),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}], 0.0),
        ([{"key": "other", "operator": "Exists"}], 0.0),
    ],
)
def test_when_a_pod_must_leave(tolerations: list[Json], expected: float | None) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"tolerations": tolerations}}
    silent = node("Unknown", taint(UNREACHABLE, "NoSchedule"), taint(UNREACHABLE, "NoExecute"))
    assert eviction_due(silent, pod, NOW + dt.timedelta(seconds=60)) == expected


class Kubelet:
    """Renews a Lease for as long as it lives."""

    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.world.create(NODES, self.name)
        await self.report()

    async def report(self) -> None:
        """What a kubelet says when it starts, and finds its conditions written over."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now}
        ready["lastHeartbeatTime"] = now
        await self.world.patch(NODES, self.name, {"status": {"conditions": [ready]}}, "status")
        self._task = asyncio.create_task(self._renew())

    async def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _renew(self) -> None:
        path = LEASES.path((LEASE_NAMESPACE, self.name))
        body: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
        while True:
            body["spec"] = {"renewTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
            try:
                await self.world.api.patch(path, {"spec": body["spec"]}, content_type="application/merge-patch+json")
            except ApiError:
                await self.world.api.create(LEASES.collection(LEASE_NAMESPACE), body)
            await asyncio.sleep(0.5)


@pytest.fixture
async def kubelet(world: Any) -> AsyncIterator[Kubelet]:
    await world.stop_controllers()
    await world.start_controllers(NodeTimes(monitor_grace_seconds=4.0, orphan_grace_seconds=2.0))
    kubelet = Kubelet(world, "lost")
    await kubelet.start()
    yield kubelet
    await kubelet.kill()


async def a_pod(world: Any, name: str, **spec: Any) -> Json:
    body = {"spec": {"nodeName": "lost", "containers": [{"name": "c", "image": "i"}], **spec}}
    created: Json = await world.create(PODS, name, body)
    await world.set_ready(created)
    return created


async def ready_status(world: Any, resource: Any, name: str) -> str:
    found = await world.get(resource, name)
    return str((condition(found, "Ready") or {}).get("status"))


@pytest.mark.integration
async def test_pods_of_a_silent_node_become_unready_and_are_evicted(world: Any, kubelet: Kubelet) -> None:
    short = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    await a_pod(world, "stays")
    await a_pod(world, "leaves", tolerations=[short])
    await asyncio.sleep(0)
    assert await ready_status(world, NODES, "lost") == "True"
    await kubelet.kill()

    async def noticed() -> bool:
        return await ready_status(world, NODES, "lost") == "Unknown"

    await world.until(noticed)

    async def unready() -> bool:
        return {await ready_status(world, PODS, name) for name in ("stays", "leaves")} == {"False"}

    await world.until(unready)

    async def leaving() -> Json | None:
        found: Json = await world.get(PODS, "leaves")
        return found if "deletionTimestamp" in found["metadata"] else None

    pod = await world.until(leaving)
    assert (condition(pod, "DisruptionTarget") or {})["reason"] == "DeletionByTaintManager"
    stays = await world.get(PODS, "stays")
    assert "deletionTimestamp" not in stays["metadata"]  # it tolerates 300 seconds, as every Pod by default
    assert {each["tolerationSeconds"] for each in stays["spec"]["tolerations"]} == {300}
    assert {each["key"] for each in (await world.get(NODES, "lost"))["spec"]["taints"]} == {UNREACHABLE}


@pytest.mark.integration
async def test_a_silent_node_comes_back(world: Any, kubelet: Kubelet) -> None:
    await kubelet.kill()

    async def taints() -> list[Json]:
        found: list[Json] = (await world.get(NODES, "lost"))["spec"].get("taints") or []
        return found

    await world.until(taints)
    await kubelet.report()

    async def clean() -> bool:
        return not await taints()

    await world.until(clean)
    assert await ready_status(world, NODES, "lost") == "True"


@pytest.mark.integration
async def test_pods_of_a_deleted_node_are_collected(world: Any, kubelet: Kubelet) -> None:
    await a_pod(world, "orphan")
    seen: list[Json] = []
    await kubelet.kill()
    await world.api.delete(NODES.path(("", "lost")))

    async def gone() -> bool:
        found = await world.get(PODS, "orphan")
        seen.append(found) if found else None
        return found is None

    await world.until(gone)
    assert "deletionTimestamp" not in seen[0]["metadata"]
    assert key_of(seen[0]) == (world.namespace, "orphan")
