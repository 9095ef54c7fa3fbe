"""What is seen of a cluster's gateways: how many are ready, whether they are being replaced, and what keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from fulcrum.controller.children import Manifest
from fulcrum.decide import GatewayState
from fulcrum.kube.readiness import is_current

_STARTING: Final = frozenset((None, "", "ContainerCreating", "PodInitializing"))
"""What a container waits for that comes by itself; every other reason is a failure (kubelets have 20 of them)."""


def gateway_state(deployment: Manifest | None, service: Manifest | None, pods: Iterable[Manifest]) -> GatewayState:
    """Return the state of the gateway Deployment, its Service and its Pods."""
    of_deployment, of_service = deployment or {}, service or {}
    status: dict[str, Any] = of_deployment.get("status") or {}
    desired = int((of_deployment.get("spec") or {}).get("replicas") or 0)
    updated = int(status.get("updatedReplicas") or 0)
    address = (of_service.get("spec") or {}).get("clusterIP")
    rolling = deployment is not None and (
        not is_current(deployment)
        or updated < desired
        or int(status.get("replicas") or 0) > updated
        or int(status.get("availableReplicas") or 0) < desired
    )
    return GatewayState(
        desired=desired,
        ready=int(status.get("availableReplicas") or 0),
        cluster_ip=address if address not in (None, "", "None") else None,
        rolling=rolling,
        stuck=stuck(deployment, pods) if rolling else None,
    )


def stuck(deployment: Manifest | None, pods: Iterable[Manifest]) -> str | None:
    """Return what keeps a Deployment from its Pods, as Kubernetes says it; None: nothing does, but perhaps time."""
    return next(chain(_of_pods(pods), _of_deployment((deployment or {}).get("status") or {})), None)


def _of_pods(pods: Iterable[Manifest]) -> Iterator[str]:
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in _STARTING and "deletionTimestamp" not in pod["metadata"]:
                said = waiting.get("message") or "see its events"
                yield f"Pod {pod['metadata']['name']}: {waiting['reason']}: {said}"


def _of_deployment(status: Manifest) -> Iterator[str]:
    """What its controller says: a Pod that a quota or a policy refuses, or no progress until its deadline."""
    failing = {"ReplicaFailure": "True", "Progressing": "False"}
    for condition in status.get("conditions") or ():
        if failing.get(condition.get("type")) == condition.get("status"):
            yield f"{condition.get('reason')}: {condition.get('message') or 'see the Deployment'}"
