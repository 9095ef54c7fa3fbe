"""Identity of the object that owns a child: metadata, labels and owner reference of everything we make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fulcrum.api.names import (
    API_VERSION,
    COMPONENT_GATEWAY,
    COMPONENT_WORKER,
    KIND,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_FRONT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
)

Manifest = dict[str, Any]
"""A Kubernetes object as JSON-like values."""

APP_NAME: Final = "fulcrum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The InferenceCluster or InferenceGateway that a child belongs to."""

    name: str
    namespace: str
    uid: str
    kind: str = KIND

    @property
    def label(self) -> str:
        """Label of its children that holds its name."""
        return LABEL_CLUSTER if self.kind == KIND else LABEL_FRONT

    def labels(self, component: str) -> dict[str, str]:
        """Labels of a child of a component (`worker`, `gateway`)."""
        return {
            LABEL_NAME: APP_NAME,
            LABEL_INSTANCE: self.name,
            LABEL_COMPONENT: component,
            LABEL_MANAGED_BY: APP_NAME,
            self.label: self.name,
        }

    def selector(self, component: str) -> dict[str, str]:
        """Labels that select the Pods of a component, and no others."""
        return {self.label: self.name, LABEL_COMPONENT: component}

    def metadata(self, name: str, component: str) -> Manifest:
        """Metadata of a child. The garbage collector removes it with its owner, with or without an operator."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(component),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": self.kind,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }


WORKER: Final = COMPONENT_WORKER
GATEWAY: Final = COMPONENT_GATEWAY

CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
POD_SECURITY: Final[Manifest] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def pod_identity_env() -> list[Manifest]:
    """Environment that tells a container which Pod it is, and where (downward API)."""
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
