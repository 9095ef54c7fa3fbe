"""Names and paths of the resources that controllers work on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for what has none) and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One collection of the API."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, key: Key | None = None, subresource: str = "") -> str:
        """The URL path of an object, or of the whole collection."""
        parts = ["", "apis" if "/" in self.api_version else "api", self.api_version]
        if key is None:
            return "/".join([*parts, self.plural])
        namespace, name = key
        if self.namespaced:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, name, subresource]).rstrip("/")

    def collection(self, namespace: str) -> str:
        """The URL path that objects are created under."""
        return self.path((namespace, ""))


PODS: Final = Resource(api_version="v1", kind="Pod", plural="pods")
NODES: Final = Resource(api_version="v1", kind="Node", plural="nodes", namespaced=False)
SERVICES: Final = Resource(api_version="v1", kind="Service", plural="services")
EVENTS: Final = Resource(api_version="v1", kind="Event", plural="events")
DEPLOYMENTS: Final = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")
REPLICA_SETS: Final = Resource(api_version="apps/v1", kind="ReplicaSet", plural="replicasets")
ENDPOINT_SLICES: Final = Resource(api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices")
DISRUPTION_BUDGETS: Final = Resource(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")


def key_of(obj: Json) -> Key:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def controller_of(obj: Json) -> Json | None:
    """The owner reference that says who manages the object."""
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
