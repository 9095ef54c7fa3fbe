"""The Pod of `spec.batch`: what keeps it from its start is told with what to do, and its progress is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.controller.snapshots import snapshot_of
from tests.controller.test_batch_child import WITH_BATCH
from tests.controller.test_observe import CLUSTER
from tests.decide.world import START, make_spec, pool
from tests.report.test_plan import settled

from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionStatus, ConditionType
from fulcrum.controller.children import Manifest
from fulcrum.controller.observed import Observed, batch_address
from fulcrum.controller.seen import SeenPod
from fulcrum.report import plan

NOT_FOUND = '0/3 nodes are available: persistentvolumeclaim "files" not found.'
QUOTA = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: pods"}


def batch_pod(*, restarts: int = 0, message: str = "", waiting: str = "", **conditions: str) -> Manifest:
    """As the operator keeps it; `conditions` are messages of those that are false, empty where one is true."""
    state: dict[str, Any] = {"waiting": {"reason": waiting, "message": "back-off"}} if waiting else {"running": {}}
    said = [
        {"type": kind, "status": "False" if text else "True", "reason": "Unschedulable", "message": text}
        for kind, text in conditions.items()
    ]
    labels = {"app.kubernetes.io/component": "batch"}
    container = {"name": "batch", "restartCount": restarts, "state": state}
    if message:
        container["lastState"] = {"terminated": {"exitCode": 1, "message": message}}
    pod = {
        "metadata": {"name": "c-batch-1", "uid": "b", "resourceVersion": "1", "labels": labels},
        "spec": {"containers": [{"name": "batch"}]},
        "status": {"podIP": "10.0.0.9", "conditions": said, "containerStatuses": [container]},
    }
    kept: Manifest = msgspec.to_builtins(msgspec.convert(pod, SeenPod))
    return kept


def problem(*pods: Manifest, conditions: tuple[Manifest, ...] = (), on: bool = True) -> str | None:
    cluster = {**CLUSTER, "spec": {**CLUSTER["spec"], **(WITH_BATCH if on else {})}}  # type: ignore[dict-item]
    deployment = {"metadata": {}, "spec": {"replicas": 1}, "status": {"conditions": list(conditions)}}
    observed = Observed(cluster=cluster, pods=(), deployment=None, service=None, batch=deployment, batch_pods=pods)
    return snapshot_of(observed, load_inference_cluster(cluster)).batch_problem


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (problem(), None),
        (problem(batch_pod(Ready="")), None),
        (problem(batch_pod(Ready="starting", PodScheduled="")), None),
        (problem(batch_pod(Ready="starting", restarts=1, message="killed")), None),
        (problem(batch_pod(PodScheduled=NOT_FOUND), on=False), None),
        (
            problem(batch_pod(PodScheduled=NOT_FOUND)),
            f"Pod c-batch-1: Unschedulable: {NOT_FOUND} Look at the claim of spec.batch: kubectl get pvc files. Create "
            "it if it is missing, or name another one in spec.batch.claim.",
        ),
        (
            problem(batch_pod(restarts=2, waiting="CrashLoopBackOff", message="x\nError: cannot be written: mount\n")),
            "Pod c-batch-1 ends again and again: Error: cannot be written: mount. See kubectl describe pod -l "
            "app.kubernetes.io/component=batch,fulcrum.dev/cluster=c.",
        ),
        (
            problem(batch_pod(waiting="ImagePullBackOff")),
            "Pod c-batch-1: ImagePullBackOff: back-off. See kubectl describe pod -l "
            "app.kubernetes.io/component=batch,fulcrum.dev/cluster=c.",
        ),
        (
            problem(conditions=(QUOTA,)),
            "FailedCreate: exceeded quota: pods. See kubectl describe pod -l "
            "app.kubernetes.io/component=batch,fulcrum.dev/cluster=c.",
        ),
    ],
)
def test_what_keeps_it_from_its_start(found: str | None, said: str | None) -> None:
    assert found == said


def test_it_is_asked_while_it_is_ready() -> None:
    ready, starting = batch_pod(Ready=""), batch_pod(Ready="starting")
    ending = {**ready, "metadata": {**ready["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    for pods, address in (((ready,), "10.0.0.9"), ((starting,), None), ((ending,), None), ((), None)):
        observed = Observed(cluster={}, pods=(), deployment=None, service=None, batch_pods=pods)
        assert batch_address(observed) == address


def test_the_condition_says_so_until_it_is_over() -> None:
    world = settled(make_spec(pool()))
    found = plan(replace(world.snapshot(), batch_problem="Why."), START)
    degraded = next(each for each in found.status.conditions if each.type is ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.BATCH_NOT_READY)
    assert degraded.message == "Files and batches get 503; all other requests are served. Why."
    assert [(event.reason, event.warning) for event in found.events] == [(Reason.BATCH_NOT_READY, True)]
    available = next(each for each in found.status.conditions if each.type is ConditionType.AVAILABLE)
    assert available.status is ConditionStatus.TRUE
