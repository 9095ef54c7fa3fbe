"""What an InferenceCluster consists of, as pure functions of its spec."""

from __future__ import annotations

from collections.abc import Iterable

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children.batch import batch_children
from fulcrum.controller.children.disruption_budget import gateway_budget, workers_budget
from fulcrum.controller.children.gateway_deployment import gateway_deployment
from fulcrum.controller.children.network_policy import gateway_policy, workers_policy
from fulcrum.controller.children.owner import Manifest, Owner
from fulcrum.controller.children.rbac import gateway_role, gateway_role_binding, gateway_service_account
from fulcrum.controller.children.service import gateway_service
from fulcrum.controller.children.template_check import refused_templates
from fulcrum.controller.children.worker_pod import role_labels, worker_pod
from fulcrum.controller.installation import Installation
from fulcrum.decide import ObservedWorker

__all__ = ["Manifest", "Owner", "children", "refused_templates", "role_labels", "worker_pod"]

_DEFAULTS = Installation()


def children(
    owner: Owner,
    spec: InferenceClusterSpec,
    installation: Installation = _DEFAULTS,
    *,
    token_fingerprint: str,
    least_available: int = 0,
    live_gateways: int | None = None,
    gateway_address: str | None = None,
    live_batch: Manifest | None = None,
    workers: Iterable[ObservedWorker] = (),
) -> tuple[Manifest, ...]:
    """Return every child but the workers and the Secret of the token, in an order in which each finds what it needs.

    `token_fingerprint` is that of the token in the Secret; `least_available` is how many workers the eviction of Pods
    must leave; `live_gateways` is the count in the gateway Deployment, None where there is none; `gateway_address` is
    that of its Service, None while it has none; `live_batch` is the Deployment of `spec.batch` that there is; `workers`
    are those that stand.
    """
    return (
        gateway_service_account(owner),
        gateway_role(owner),
        gateway_role_binding(owner),
        gateway_service(owner, spec.gateway.service),
        # Before the Pods that they are about.
        gateway_policy(owner, installation),
        workers_policy(owner, spec, installation, workers),
        gateway_deployment(owner, spec, installation, token_fingerprint=token_fingerprint, live_replicas=live_gateways),
        gateway_budget(owner),
        workers_budget(owner, least_available),
        *batch_children(
            owner, spec, installation, token_fingerprint=token_fingerprint, gateway=gateway_address, live=live_batch
        ),
    )
