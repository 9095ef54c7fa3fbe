"""What is seen of the Pod of `spec.batch`: what keeps it from its start, and what it says of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fulcrum.api.batch import BatchCounts
from fulcrum.api.messages import shortened
from fulcrum.api.names import COMPONENT_BATCH, LABEL_CLUSTER, LABEL_COMPONENT
from fulcrum.api.types import BatchesStatus, InferenceCluster
from fulcrum.controller.children import Manifest
from fulcrum.controller.gateway_state import stuck

_MOST: Final = 2**31 - 1
"""Largest number that is shown: far above what `spec.batch` allows."""
_CRASHES: Final = 2
"""Restarts from which a process that is not ready ends again and again: one comes back by itself."""


def batches_status(counts: BatchCounts) -> BatchesStatus:
    """Return what a batch Pod said as the status has it: numbers that the API server takes."""
    figures = {name: min(max(figure, 0), _MOST) for name, figure in msgspec.structs.asdict(counts).items()}
    return BatchesStatus(**figures)


def batch_problem(cluster: InferenceCluster, deployment: Manifest | None, pods: Iterable[Manifest]) -> str | None:
    """Return what keeps the Pod from its start and what to do; None where it is ready, or nothing is known to."""
    batch, live = cluster.spec.batch, [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if batch is None or any(_condition(pod, "Ready").get("status") == "True" for pod in live):
        return None
    said = next((why for pod in live if (why := _unscheduled(pod) or _crashed(pod))), None) or stuck(deployment, live)
    if said is None:
        return None
    if "volume" in said.lower():  # a claim that is missing, not bound, or on another node
        advice = (
            f"Look at the claim of spec.batch: kubectl get pvc {batch.claim}. Create it if it is missing, or name "
            "another one in spec.batch.claim."
        )
    else:
        selector = f"{LABEL_COMPONENT}={COMPONENT_BATCH},{LABEL_CLUSTER}={cluster.metadata.name}"
        advice = f"See kubectl describe pod -l {selector}."
    return f"{said.rstrip('.')}. {advice}"


def _unscheduled(pod: Manifest) -> str | None:
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    name = pod["metadata"]["name"]
    return f"Pod {name}: {scheduled.get('reason')}: {shortened(scheduled.get('message') or 'see its events')}"


def _crashed(pod: Manifest) -> str | None:
    """What a process that ends again and again said last; that it waits for its next start says nothing."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("lastState") or {}).get("terminated") or {}
        lines = str(ended.get("message") or "").strip().splitlines()
        if lines and int(container.get("restartCount") or 0) >= _CRASHES:
            return f"Pod {pod['metadata']['name']} ends again and again: {shortened(lines[-1])}"
    return None


def _condition(pod: Manifest, kind: str) -> dict[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})
