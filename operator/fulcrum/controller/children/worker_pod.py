"""The Pod of one worker."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from fulcrum.api.durations import seconds
from fulcrum.api.names import (
    ANNOTATION_ROLE_EPOCH,
    ANNOTATION_SPEC_HASH,
    ENV_WORKER_CONFIG,
    LABEL_ACCELERATOR,
    LABEL_LLM_D_ROLE,
    LABEL_POOL,
    LABEL_ROLE,
    LLM_D_ROLES,
    PORT_AGENT,
    PORT_ENGINE,
    PORT_NIXL,
    Role,
    worker_name,
)
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.balance import worker_config, worker_revision
from fulcrum.controller.children.overlay import overlay
from fulcrum.controller.children.owner import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    WORKER,
    Manifest,
    Owner,
    pod_identity_env,
)
from fulcrum.controller.children.probe import http_probe

CONTAINER: Final = "worker"
IMAGE_GROUP: Final = 10001
"""Group of the worker image's user, so that it may write to a claim."""
CACHE_PATH: Final = "/cache"
"""Where weights and compiled kernels are kept; the worker image's XDG_CACHE_HOME and HF_HOME point into it."""
GRACE_MARGIN_SECONDS: Final = 30
"""Between the end of the drain and SIGKILL: time for vLLM to end by itself."""
START_MARGIN_SECONDS: Final = 120
"""The agent gives up first, because its exit says more than a kubelet's kill."""


def worker_pod(owner: Owner, spec: InferenceClusterSpec, pool: Pool, *, ordinal: int, role: Role) -> Manifest:
    """Return the Pod of worker `ordinal` of `pool`, created in `role` at epoch 0."""
    name = worker_name(owner.name, pool.name, ordinal)
    metadata = owner.metadata(name, WORKER)
    metadata["labels"] |= {LABEL_POOL: pool.name, **role_labels(role)}
    metadata["annotations"] = {
        ANNOTATION_ROLE_EPOCH: "0",
        ANNOTATION_SPEC_HASH: worker_revision(cluster=owner.name, spec=spec, pool=pool),
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(owner, spec, pool, role)}
    template = {key: value for key, value in pool.template.items() if key in ("metadata", "spec")}
    merged = overlay(pod, template)
    # A template may add labels, but who the Pod is stays ours.
    merged["metadata"] = overlay(merged["metadata"], metadata)
    return merged


def role_labels(role: Role) -> dict[str, str]:
    """Return the labels that say a worker's role, ours and the one that other tools read."""
    return {LABEL_ROLE: role.value, LABEL_LLM_D_ROLE: LLM_D_ROLES[role]}


def _pod_spec(owner: Owner, spec: InferenceClusterSpec, pool: Pool, role: Role) -> Manifest:
    config = worker_config(cluster=owner.name, spec=spec, pool=pool, role=role)
    on_gpu = pool.accelerator != "cpu"
    gpus = str(pool.parallelism.tensor * pool.parallelism.pipeline)
    volumes: list[Manifest] = [{"name": "cache", **_cache_source(spec)}, {"name": "tmp", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE_PATH}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 (a mount)
    if on_gpu:
        # Tensor parallel ranks talk through shared memory; the container default of 64 MiB is too little.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 (a mount)
    start_seconds = config.start_timeout_seconds + START_MARGIN_SECONDS
    container: Manifest = {
        "name": CONTAINER,
        "image": spec.engine.image,
        "command": ["python3", "-m", "fulcrum_worker"],
        "env": [
            {"name": ENV_WORKER_CONFIG, "value": msgspec.json.encode(config).decode()},
            *pod_identity_env(),
            *_credentials(spec),
        ],
        "ports": [
            {"name": "engine", "containerPort": PORT_ENGINE},
            {"name": "agent", "containerPort": PORT_AGENT},
            {"name": "nixl", "containerPort": PORT_NIXL},
        ],
        "startupProbe": http_probe("/readyz", port=PORT_AGENT, period_seconds=1, failures=math.ceil(start_seconds)),
        "readinessProbe": http_probe("/readyz", port=PORT_AGENT, period_seconds=2, failures=3),
        "livenessProbe": http_probe("/healthz", port=PORT_AGENT, period_seconds=10, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": mounts,
    }
    if on_gpu:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}}
    pod_spec: Manifest = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(seconds(spec.balance.flip.drain_timeout)) + GRACE_MARGIN_SECONDS,
        "securityContext": {**POD_SECURITY, "fsGroup": IMAGE_GROUP},
        "containers": [container],
        "volumes": volumes,
    }
    if on_gpu:
        pod_spec["nodeSelector"] = {LABEL_ACCELERATOR: pool.accelerator}
    return pod_spec


def _cache_source(spec: InferenceClusterSpec) -> Manifest:
    if spec.model.cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": spec.model.cache.persistent_volume_claim}}


def _credentials(spec: InferenceClusterSpec) -> list[Manifest]:
    if spec.model.credentials is None:
        return []
    reference = {"name": spec.model.credentials.secret_name, "key": "token"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]
