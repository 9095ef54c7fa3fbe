"""The scheduler binds Pods that fit, and says why one does not."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.controllers.fitting import chosen_node
from fulcrum_local.controllers.resources import EVENTS, NODES, PODS, Json


def pod(name: str = "p", node: str = "", gpus: int = 0, **spec: Any) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "c", "image": "i", "resources": resources}
    bound = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **bound, **spec}, "status": {}}


def a_node(name: str, *, ready: str = "True", gpus: int = 0, **spec: Any) -> Json:
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"nvidia.com/gpu": str(gpus)}}
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": spec, "status": status}


def affinity(operator: str, *values: str) -> Json:
    expression = {"key": "zone", "operator": operator, "values": list(values)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


TAINT = {"key": "t", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("wanted", "nodes", "pods", "expected"),
    [
        (pod(), [], [], ("", "no nodes available to schedule pods")),
        (pod(), [a_node("a")], [], ("a", "")),
        (pod(), [a_node("a"), a_node("b")], [pod(node="a")], ("b", "")),
        (pod(), [a_node("a", ready="Unknown")], [], ("", "0/1 nodes are available: 1 node(s) were not ready.")),
        (pod(), [a_node("a", unschedulable=True)], [], ("", "0/1 nodes are available: 1 node(s) were unschedulable.")),
        (pod(nodeSelector={"zone": "a"}), [a_node("a")], [], ("a", "")),
        (
            pod(nodeSelector={"zone": "b"}),
            [a_node("a")],
            [],
            ("", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        ),
        (pod(**affinity("In", "a")), [a_node("a")], [], ("a", "")),
        (pod(**affinity("Exists")), [a_node("a")], [], ("a", "")),
        (
            pod(**affinity("NotIn", "a")),
            [a_node("a")],
            [],
            ("", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        ),
        (pod(gpus=2), [a_node("a", gpus=2)], [], ("a", "")),
        (
            pod(gpus=2),
            [a_node("a", gpus=2), a_node("b")],
            [pod(node="a", gpus=1)],
            ("", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
        ),
        (
            pod(),
            [a_node("a", taints=[TAINT])],
            [],
            ("", "0/1 nodes are available: 1 node(s) had untolerated taint(s) {t: v}."),
        ),
        (pod(tolerations=[{"key": "t", "operator": "Exists"}]), [a_node("a", taints=[TAINT])], [], ("a", "")),
        (pod(tolerations=[{"key": "t", "value": "v"}]), [a_node("a", taints=[TAINT])], [], ("a", "")),
        (pod(), [a_node("a", taints=[{**TAINT, "effect": "PreferNoSchedule"}])], [], ("a", "")),
    ],
)
def test_what_fits_where(wanted: Json, nodes: list[Json], pods: list[Json], expected: tuple[str, str]) -> None:
    assert chosen_node(wanted, nodes, pods) == expected


async def bound_to(world: Any, name: str) -> str | None:
    found = await world.get(PODS, name)
    node: str | None = found["spec"].get("nodeName")
    return node


async def problem_of(world: Any, name: str) -> str | None:
    found = await world.get(PODS, name)
    conditions = {each["type"]: each for each in found["status"].get("conditions") or ()}
    message: str | None = conditions.get("PodScheduled", {}).get("message")
    return message


@pytest.mark.integration
async def test_gpus_are_given_out_once_and_come_back(world: Any, node: Json) -> None:
    for name in ("first", "second", "third"):
        body = pod(gpus=1)
        await world.create(PODS, name, {"spec": body["spec"]})
    await world.until(lambda: bound_to(world, "first"))
    await world.until(lambda: bound_to(world, "second"))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    await world.until(lambda: _has_problem(world, "third", message))  # the node may be seen after the Pod

    async def said() -> list[Json]:
        return [event for event in await world.list(EVENTS) if event["message"] == message]

    (event,) = await world.until(said)
    assert (event["reason"], event["involvedObject"]["name"]) == ("FailedScheduling", "third")
    await world.delete(PODS, "first")
    await world.finish_deletions()
    assert await world.until(lambda: bound_to(world, "third")) == "node-1"


@pytest.mark.integration
async def test_a_pod_waits_for_a_node(world: Any) -> None:
    await world.create(PODS, "early", {"spec": pod(nodeSelector={"kind": "late"})["spec"]})
    assert await world.until(lambda: problem_of(world, "early")) == "no nodes available to schedule pods"
    await world.create(NODES, "late-node", labels={"kind": "late"})
    assert "not ready" in await world.until(lambda: _other_problem(world, "no nodes available to schedule pods"))
    await world.patch(NODES, "late-node", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "status")
    assert await world.until(lambda: bound_to(world, "early")) == "late-node"


async def _has_problem(world: Any, name: str, message: str) -> bool:
    return await problem_of(world, name) == message


async def _other_problem(world: Any, before: str) -> str | None:
    message = await problem_of(world, "early")
    return message if message != before else None
