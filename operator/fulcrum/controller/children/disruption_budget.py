"""What node maintenance may take away at a time."""

from __future__ import annotations

from fulcrum.api.names import gateway_name, workers_budget_name
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance import make_target
from fulcrum.controller.children.owner import GATEWAY, WORKER, Manifest, Owner


def workers_budget(owner: Owner, spec: InferenceClusterSpec) -> Manifest:
    """Return the budget of the workers: one at a time.

    As a least number, because Kubernetes takes a most number of absent Pods only where the owner can be scaled.
    """
    least = max(0, make_target(spec).total - 1)
    return _budget(owner, workers_budget_name(owner.name), WORKER, {"minAvailable": least})


def gateway_budget(owner: Owner) -> Manifest:
    """Return the budget of the gateways: one at a time, also where there is only one (a node must drain)."""
    return _budget(owner, gateway_name(owner.name), GATEWAY, {"maxUnavailable": 1})


def _budget(owner: Owner, name: str, component: str, bound: dict[str, int]) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(name, component),
        "spec": {**bound, "selector": {"matchLabels": owner.selector(component)}},
    }
