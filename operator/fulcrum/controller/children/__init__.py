"""What an InferenceCluster consists of, as pure functions of its spec."""

from __future__ import annotations

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children.disruption_budget import gateway_budget, workers_budget
from fulcrum.controller.children.gateway_deployment import gateway_deployment
from fulcrum.controller.children.owner import Manifest, Owner
from fulcrum.controller.children.rbac import gateway_role, gateway_role_binding, gateway_service_account
from fulcrum.controller.children.service import gateway_service
from fulcrum.controller.children.worker_pod import role_labels, worker_pod

__all__ = ["Manifest", "Owner", "children", "role_labels", "worker_pod"]


def children(owner: Owner, spec: InferenceClusterSpec) -> tuple[Manifest, ...]:
    """Return every child but the workers, in an order in which each finds what it needs."""
    return (
        gateway_service_account(owner),
        gateway_role(owner),
        gateway_role_binding(owner),
        gateway_service(owner),
        gateway_deployment(owner, spec),
        gateway_budget(owner),
        workers_budget(owner, spec),
    )
