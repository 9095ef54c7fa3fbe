"""One cluster as the API server has it, and what its objects say by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fulcrum.api.internal_token import ANNOTATION_TOKEN
from fulcrum.api.names import ANNOTATION_PAUSED, ANNOTATION_SPEC_HASH, KIND, LABEL_POOL, Role
from fulcrum.api.types import InferenceCluster
from fulcrum.controller.children import Manifest
from fulcrum.controller.children.worker_pod import CONTAINER as WORKER_CONTAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One cluster as the API server has it; None is absent."""

    cluster: Manifest
    pods: tuple[Manifest, ...]
    """One for each worker; see `groups.worker_pods`."""
    deployment: Manifest | None
    service: Manifest | None
    gateways: tuple[Manifest, ...] = ()
    """Pods of gateways."""
    batch: Manifest | None = None
    """Deployment of the batch Pod."""
    batch_pods: tuple[Manifest, ...] = ()
    preload_pods: tuple[Manifest, ...] = ()
    scales: tuple[Manifest, ...] = ()
    """InferenceScales."""
    groups: tuple[Manifest, ...] = ()
    """LeaderWorkerSets: of workers on several nodes."""
    followers: tuple[Manifest, ...] = ()
    """Pods of such workers beside those in `pods`."""


def gateway_addresses(observed: Observed) -> dict[str, str]:
    """Return the address of each ready gateway, by the name of its Pod."""
    return _ready_addresses(observed.gateways)


def batch_address(observed: Observed) -> str | None:
    """Return the address of the batch Pod; None while it is not ready."""
    return next(iter(_ready_addresses(observed.batch_pods).values()), None)


def _ready_addresses(pods: Iterable[Manifest]) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: status["podIP"]
        for pod in pods
        if (status := pod.get("status") or {}).get("podIP")
        and any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        and "deletionTimestamp" not in pod["metadata"]
    }


def running_images(observed: Observed) -> dict[tuple[str, str], str]:
    """Return the image of the workers of each (pool, revision)."""
    images = {}
    for pod in observed.pods:
        metadata = pod["metadata"]
        key = (
            metadata["labels"].get(LABEL_POOL, ""),
            (metadata.get("annotations") or {}).get(ANNOTATION_SPEC_HASH, ""),
        )
        for container in pod["spec"]["containers"]:
            if container["name"] == WORKER_CONTAINER:
                images[key] = container.get("image", "")
    return images


def asked_replicas(observed: Observed, cluster_uid: str) -> dict[tuple[str, Role], int]:
    """Return what the cluster's own InferenceScales ask for, by pool and role."""
    return {
        (scale["spec"]["pool"], Role(scale["spec"]["role"])): int(scale["spec"].get("replicas", 1))
        for scale in observed.scales
        if is_owned(scale["metadata"], cluster_uid) and "deletionTimestamp" not in scale["metadata"]
    }


def is_paused(cluster: InferenceCluster) -> bool:
    """Report whether nothing of the cluster is to be changed."""
    return cluster.metadata.annotations.get(ANNOTATION_PAUSED, "false").lower() != "false"


def token_of(pod: Manifest) -> str | None:
    """Return the fingerprint of the token that a Pod was made with; None for one that knows of no token."""
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_TOKEN)


def gateways_send_token(observed: Observed) -> bool:
    """Report whether no gateway of the release before takes requests: a new worker would refuse what it sends."""
    return all(token_of(pod) is not None for pod in observed.gateways if "deletionTimestamp" not in pod["metadata"])


def is_owned(metadata: Manifest, owner_uid: str) -> bool:
    """Report whether an object has an owner reference to the cluster with this uid: only such objects are ours."""
    return any(owner.get("uid") == owner_uid for owner in metadata.get("ownerReferences") or [])


def is_of_namesake(metadata: Manifest, name: str, kind: str = KIND) -> bool:
    """Report whether an object belongs to an owner of this name (and kind): ours, or an earlier one.

    What an earlier one left is on its way out, even before the garbage collector says so.
    """
    owners = metadata.get("ownerReferences") or []
    return any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)


def is_ours(metadata: Manifest, cluster: InferenceCluster) -> bool:
    """Report whether a Pod belongs to the cluster, or to an earlier one of its name."""
    return is_owned(metadata, cluster.metadata.uid) or is_of_namesake(metadata, cluster.metadata.name)
