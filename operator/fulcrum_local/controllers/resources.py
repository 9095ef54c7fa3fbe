"""Names and paths of the resources that controllers work on."""

from __future__ import annotations

from typing import Final

from fulcrum.kube import Json, Key, Resource, key_of

__all__ = ["Json", "Key", "Resource", "key_of"]

PODS: Final = Resource(api_version="v1", kind="Pod", plural="pods")
NODES: Final = Resource(api_version="v1", kind="Node", plural="nodes", namespaced=False)
SERVICES: Final = Resource(api_version="v1", kind="Service", plural="services")
LEASES: Final = Resource(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")
EVENTS: Final = Resource(api_version="v1", kind="Event", plural="events")
DEPLOYMENTS: Final = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")
REPLICA_SETS: Final = Resource(api_version="apps/v1", kind="ReplicaSet", plural="replicasets")
ENDPOINT_SLICES: Final = Resource(api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices")
DISRUPTION_BUDGETS: Final = Resource(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")


def controller_of(obj: Json) -> Json | None:
    """The owner reference that says what manages the object."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def controller_reference(resource: Resource, owner: Json) -> Json:
    """An owner reference that says that `owner` manages an object, and waits for it when it is deleted foreground."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
