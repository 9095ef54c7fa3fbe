"""Whether a PodDisruptionBudget lets a Pod be evicted, from the Pods as they are now."""

from __future__ import annotations

import math
from typing import Any

from fulcrum.local.apiserver.errors import ApiError, Json
from fulcrum.local.apiserver.selectors import selector_matches
from fulcrum.local.apiserver.store import Store

_STORAGE = "poddisruptionbudgets.policy"


def refusing_budget(store: Store, pod: Json) -> ApiError | None:
    """The 429 that evicting the Pod must be answered with, or None when it may go."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or pod["metadata"].get("deletionTimestamp"):
        return None
    namespace = pod["metadata"]["namespace"]
    labels = pod["metadata"].get("labels") or {}
    budgets = [
        stored.obj
        for stored in store.scan(_STORAGE, namespace)
        if selector_matches((stored.obj.get("spec") or {}).get("selector"), labels)
    ]
    if len(budgets) > 1:
        return ApiError(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
                             "support.")  # fmt: skip
    if not budgets or not _is_ready(pod):
        return None  # a Pod that is not ready does not count towards its budget
    spec = budgets[0].get("spec") or {}
    pods = [
        stored.obj
        for stored in store.scan("pods", namespace)
        if selector_matches(spec.get("selector"), stored.obj["metadata"].get("labels") or {})
        and stored.obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    healthy = sum(1 for entry in pods if _is_ready(entry) and not entry["metadata"].get("deletionTimestamp"))
    needed = desired_healthy(spec, len(pods))
    if healthy - 1 >= needed:
        return None
    name = budgets[0]["metadata"]["name"]
    message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
    return ApiError(
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
    )


def desired_healthy(spec: Json, expected: int) -> int:
    """How many of `expected` Pods must stay healthy."""
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected))
    if spec.get("minAvailable") is not None:
        return _scaled(spec["minAvailable"], expected)
    return max(0, expected - 1)


def _scaled(value: Any, total: int) -> int:
    if isinstance(value, str):
        return math.ceil(int(value.removesuffix("%")) * total / 100)
    return int(value)


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
