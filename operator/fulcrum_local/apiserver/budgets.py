"""Whether a PodDisruptionBudget lets a Pod be evicted, from the Pods as they are now."""

from __future__ import annotations

from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.store import Store
from fulcrum_local.objects.budgets import desired_healthy
from fulcrum_local.objects.selectors import selector_matches

_STORAGE = "poddisruptionbudgets.policy"
_UNCOUNTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases in which a Pod may go whatever its budget says."""


def refusing_budget(store: Store, pod: Json) -> ApiError | None:
    """The 429 that evicting the Pod must be answered with, or None when it may go."""
    if pod.get("status", {}).get("phase") in _UNCOUNTED_PHASES or pod["metadata"].get("deletionTimestamp"):
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
    return _refusal(store, budgets[0], pod) if budgets else None


def _refusal(store: Store, budget: Json, pod: Json) -> ApiError | None:
    namespace, spec = pod["metadata"]["namespace"], budget.get("spec") or {}
    if not _is_ready(pod) and spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return None
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
    if not _is_ready(pod) and healthy >= needed > 0:
        return None  # it does not count towards the budget, and what does count is enough (IfHealthyBudget)
    name = budget["metadata"]["name"]
    message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
    return ApiError(
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
    )


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
