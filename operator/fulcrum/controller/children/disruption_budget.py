"""What node maintenance may take away at a time."""

from __future__ import annotations

from fulcrum.api.names import gateway_name, workers_budget_name
from fulcrum.controller.children.owner import GATEWAY, WORKER, Manifest, Owner


def workers_budget(owner: Owner, least_available: int) -> Manifest:
    """Return the budget of the workers; the plan says how many must stay (`balance.BalancePlan.least_available`).

    As a least number, because Kubernetes takes a most number of absent Pods only where the owner can be scaled.
    """
    return budget_of(owner, workers_budget_name(owner.name), WORKER, {"minAvailable": least_available})


def gateway_budget(owner: Owner) -> Manifest:
    """Return the budget of the gateways: one at a time, also where there is only one (a node must drain)."""
    return budget_of(owner, gateway_name(owner.name), GATEWAY, {"maxUnavailable": 1})


def budget_of(owner: Owner, name: str, component: str, bound: dict[str, int]) -> Manifest:
    """Return the budget of a component."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(name, component),
        "spec": {
            **bound,
            "selector": {"matchLabels": owner.selector(component)},
            # A Pod that is not ready serves no request: a node can be drained of it whatever the others do.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
