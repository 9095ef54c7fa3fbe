"""Deployments and ReplicaSets against the real API server."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.controllers.pods import is_ready
from fulcrum_local.controllers.resources import DEPLOYMENTS, PODS, REPLICA_SETS, Json

pytestmark = pytest.mark.integration
LABELS = {"app": "x"}


def deployment(replicas: int = 3, image: str = "one", **spec: Any) -> Json:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {"spec": {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template, **spec}}


async def active_pods(world: Any) -> list[Json]:
    return [pod for pod in await world.list(PODS) if "deletionTimestamp" not in pod["metadata"]]


def images(pods: list[Json]) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


async def rolled_out(world: Any, image: str, replicas: int) -> Json | None:
    """What `kubectl rollout status` waits for."""
    found = await world.get(DEPLOYMENTS, "web")
    status = found.get("status") or {}
    done = (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas", 0)
        == status.get("replicas", 0)
        == status.get("availableReplicas", 0)
        == replicas
        and images(await active_pods(world)) == [image] * replicas
    )
    return found if done else None


def condition(obj: Json, name: str) -> Json:
    (found,) = (each for each in obj["status"]["conditions"] if each["type"] == name)
    return found


async def test_a_deployment_comes_up_and_says_so(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment())
    found = await world.until(lambda: rolled_out(world, "one", 3), kubelet=True)
    (replica_set,) = await world.list(REPLICA_SETS)
    digest = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{digest}"
    assert all(pod["metadata"]["labels"]["pod-template-hash"] == digest for pod in await world.list(PODS))
    assert condition(found, "Available")["reason"] == "MinimumReplicasAvailable"
    assert condition(found, "Progressing")["reason"] == "NewReplicaSetAvailable"
    assert found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"


async def test_a_rollout_never_goes_below_what_must_be_available(world: Any) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await world.create(DEPLOYMENTS, "web", deployment(strategy=rolling))
    await world.until(lambda: rolled_out(world, "one", 3), kubelet=True)
    changed = deployment(image="two")["spec"]["template"]
    await world.patch(DEPLOYMENTS, "web", {"spec": {"template": changed}})
    ready_counts, totals = [], []

    async def done() -> Json | None:
        pods = await active_pods(world)
        totals.append(len(pods))
        ready_counts.append(sum(is_ready(pod) for pod in pods))
        return await rolled_out(world, "two", 3)

    found = await world.until(done, kubelet=True)
    assert min(ready_counts) >= 3
    assert max(totals) <= 4
    assert found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    sizes = {each["spec"]["template"]["spec"]["containers"][0]["image"]: each["spec"]["replicas"]
             for each in await world.list(REPLICA_SETS)}  # fmt: skip
    assert sizes == {"one": 0, "two": 3}


async def test_going_back_uses_the_old_replica_set_with_a_new_revision(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(1))
    await world.until(lambda: rolled_out(world, "one", 1), kubelet=True)
    for image in ("two", "one"):
        await world.patch(DEPLOYMENTS, "web", {"spec": {"template": deployment(image=image)["spec"]["template"]}})
        await world.until(lambda image=image: rolled_out(world, image, 1), kubelet=True)
    assert len(await world.list(REPLICA_SETS)) == 2
    found = await world.get(DEPLOYMENTS, "web")
    assert found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"


async def test_scaling_down_takes_the_pods_that_are_not_ready(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(3))
    pods = await world.until(lambda: _exactly(world, 3))
    await world.set_ready(pods[0])
    await world.until(lambda: _status(world, "readyReplicas", 1))
    await world.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, "scale")
    (left,) = await world.until(lambda: _exactly(world, 1))
    assert left["metadata"]["name"] == pods[0]["metadata"]["name"]
    await world.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, "scale")
    await world.until(lambda: _none_left(world), kubelet=True)


async def test_a_lost_pod_is_replaced(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(2))
    await world.until(lambda: rolled_out(world, "one", 2), kubelet=True)
    (first, _) = await world.list(PODS)
    await world.delete(PODS, first["metadata"]["name"])
    await world.until(lambda: rolled_out(world, "one", 2), kubelet=True)
    assert first["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in await world.list(PODS)}


async def test_recreate_never_runs_two_versions(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(2, strategy={"type": "Recreate"}))
    await world.until(lambda: rolled_out(world, "one", 2), kubelet=True)
    await world.patch(DEPLOYMENTS, "web", {"spec": {"template": deployment(image="two")["spec"]["template"]}})
    mixtures: set[tuple[str, ...]] = set()

    async def done() -> Json | None:
        mixtures.add(tuple(dict.fromkeys(images(await world.list(PODS)))))
        return await rolled_out(world, "two", 2)

    await world.until(done, kubelet=True)
    assert ("one", "two") not in mixtures


async def test_a_rollout_that_hangs_is_reported(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(1, progressDeadlineSeconds=1))

    async def reported() -> Json | None:
        found = await world.get(DEPLOYMENTS, "web")
        conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions", ())}
        progressing: Json = conditions.get("Progressing", {})
        return progressing if progressing.get("status") == "False" else None

    progressing = await world.until(reported)
    assert progressing["reason"] == "ProgressDeadlineExceeded"
    await world.until(lambda: rolled_out(world, "one", 1), kubelet=True)


async def test_a_restart_of_the_controllers_changes_nothing(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(2))
    before = await world.until(lambda: rolled_out(world, "one", 2), kubelet=True)
    pods = {pod["metadata"]["uid"] for pod in await world.list(PODS)}
    (replica_set,) = await world.list(REPLICA_SETS)
    await world.stop_controllers()
    await world.start_controllers()
    await world.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3}})
    await world.until(lambda: rolled_out(world, "one", 3), kubelet=True)
    assert pods < {pod["metadata"]["uid"] for pod in await world.list(PODS)}
    assert [each["metadata"]["uid"] for each in await world.list(REPLICA_SETS)] == [replica_set["metadata"]["uid"]]
    assert before["metadata"]["uid"] == (await world.get(DEPLOYMENTS, "web"))["metadata"]["uid"]


async def test_a_paused_deployment_scales_but_does_not_roll(world: Any) -> None:
    await world.create(DEPLOYMENTS, "web", deployment(1))
    await world.until(lambda: rolled_out(world, "one", 1), kubelet=True)
    template = deployment(image="two")["spec"]["template"]
    await world.patch(DEPLOYMENTS, "web", {"spec": {"paused": True, "template": template}})

    async def paused() -> bool:
        found = await world.get(DEPLOYMENTS, "web")
        return bool(condition(found, "Progressing")["reason"] == "DeploymentPaused")

    await world.until(paused)
    assert images(await world.list(PODS)) == ["one"]
    await world.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
    await world.until(lambda: rolled_out(world, "two", 1), kubelet=True)


async def _exactly(world: Any, count: int) -> list[Json] | None:
    pods = await active_pods(world)
    return pods if len(pods) == count else None


async def _none_left(world: Any) -> bool:
    return not await world.list(PODS)


async def _status(world: Any, field: str, value: int) -> bool:
    found = await world.get(DEPLOYMENTS, "web")
    return bool((found.get("status") or {}).get(field) == value)
