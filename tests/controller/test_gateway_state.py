"""A gateway rollout that cannot finish is seen, with what Kubernetes says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.decide.world import START, make_spec, pool
from tests.report.test_plan import settled

from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionStatus, ConditionType
from fulcrum.controller.gateway_state import gateway_state
from fulcrum.decide import GatewayState
from fulcrum.report import plan

DONE = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
DEADLINE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
QUOTA = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: pods"}


def waiting(reason: str) -> dict[str, Any]:
    status = {"containerStatuses": [{"name": "gateway", "state": {"waiting": {"reason": reason, "message": "typo"}}}]}
    return {"metadata": {"name": "g-2"}, "status": status}


def state(status: dict[str, Any], *pods: dict[str, Any]) -> GatewayState:
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status}
    return gateway_state(deployment, {"spec": {"clusterIP": "10.0.0.1"}}, pods)


@pytest.mark.parametrize(
    ("status", "pods", "rolling", "stuck"),
    [
        (DONE, [], False, None),
        (DONE | {"conditions": [DEADLINE]}, [], False, None),
        ({}, [], True, None),
        (DONE | {"updatedReplicas": 1}, [], True, None),
        (DONE | {"replicas": 3}, [], True, None),
        (DONE | {"availableReplicas": 1}, [], True, None),
        (DONE | {"replicas": 3, "updatedReplicas": 1}, [waiting("ImagePullBackOff")], True, "ImagePullBackOff: typo"),
        (DONE | {"replicas": 3, "updatedReplicas": 1}, [waiting("ContainerCreating")], True, None),
        (DONE | {"replicas": 3, "updatedReplicas": 1}, [waiting("CreateContainerError")], True, "CreateContainerError"),
        (DONE | {"replicas": 3, "updatedReplicas": 1}, [waiting("RunContainerError")], True, "RunContainerError"),
        (DONE | {"replicas": 3, "updatedReplicas": 1}, [waiting("RegistryUnavailable")], True, "RegistryUnavailable"),
        (DONE | {"observedGeneration": 1}, [], True, None),
        (DONE | {"replicas": 3, "updatedReplicas": 1, "conditions": [DEADLINE]}, [], True, "timed out"),
        ({"conditions": [QUOTA]}, [], True, "exceeded quota: pods"),
    ],
)
def test_what_is_seen(status: dict[str, Any], pods: list[Any], rolling: bool, stuck: str | None) -> None:
    found = state(status, *pods)
    assert found.rolling is rolling
    assert found.stuck is None if stuck is None else stuck in (found.stuck or "")


def test_no_deployment_is_no_rollout() -> None:
    assert gateway_state(None, None, ()) == GatewayState()


def test_conditions_say_so() -> None:
    world = settled(make_spec(pool()))
    stuck = state(DONE | {"replicas": 3, "updatedReplicas": 1}, waiting("ImagePullBackOff"))
    said = plan(replace(world.snapshot(), gateway=stuck), START).status
    found = {each.type: (each.status, each.reason) for each in said.conditions}
    assert found[ConditionType.AVAILABLE] == (ConditionStatus.TRUE, Reason.READY)
    assert found[ConditionType.PROGRESSING] == (ConditionStatus.TRUE, Reason.GATEWAY_STARTING)
    assert found[ConditionType.DEGRADED] == (ConditionStatus.TRUE, Reason.GATEWAY_ROLLOUT_FAILED)
