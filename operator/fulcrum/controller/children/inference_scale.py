"""The InferenceScale of a role of a pool: the `/scale` that HPA, KEDA and `kubectl scale` write to."""

from __future__ import annotations

from fulcrum.api.names import API_VERSION, LABEL_CLUSTER, LABEL_POOL, LABEL_ROLE, SCALE_KIND, Role, scale_name
from fulcrum.controller.children.owner import WORKER, Manifest, Owner


def inference_scale(owner: Owner, *, pool: str, role: Role, replicas: int) -> Manifest:
    """Return the object as it is made. Afterwards `replicas` belongs to the client that scales."""
    metadata = owner.metadata(scale_name(owner.name, pool, role), WORKER)
    metadata["labels"] |= {LABEL_POOL: pool, LABEL_ROLE: role.value}
    return {
        "apiVersion": API_VERSION,
        "kind": SCALE_KIND,
        "metadata": metadata,
        "spec": {"cluster": owner.name, "pool": pool, "role": role.value, "replicas": replicas},
    }


def pod_selector(cluster: str, pool: str, role: Role) -> str:
    """Return the label selector of the Pods that have the role now: it follows flips."""
    return f"{LABEL_CLUSTER}={cluster},{LABEL_POOL}={pool},{LABEL_ROLE}={role.value}"
