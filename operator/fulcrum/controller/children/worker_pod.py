"""The Pod of one worker."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.internal_token import ANNOTATION_TOKEN, ENV_WORKER
from fulcrum.api.names import (
    ANNOTATION_ATTENTION,
    ANNOTATION_KV_DTYPE,
    ANNOTATION_NO_KV,
    ANNOTATION_PORTS,
    ANNOTATION_RELEASE_IMAGE,
    ANNOTATION_ROLE_EPOCH,
    ANNOTATION_SPEC_HASH,
    ENV_WORKER_CONFIG,
    KV_POOL_PATH,
    LABEL_LLM_D_ROLE,
    LABEL_POOL,
    LABEL_ROLE,
    LLM_D_ROLES,
    Role,
    worker_name,
)
from fulcrum.api.objects import without_defaults
from fulcrum.api.quantities import is_more
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import PATH_STARTED, WorkerConfig
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.start_timeout import SLOWEST_LOAD_BYTES_PER_SECOND
from fulcrum.controller.children.expert_exchange import exchange_env
from fulcrum.controller.children.internal_secret import token_env
from fulcrum.controller.children.overlay import overlay
from fulcrum.controller.children.owner import (
    POD_SECURITY,
    WORKER,
    Manifest,
    Owner,
    pod_identity_env,
)
from fulcrum.controller.children.probe import http_probe
from fulcrum.controller.children.worker_node import (
    avoid,
    container_security,
    downloaded_bytes,
    named_ports,
    network,
    placement,
    resources,
    shared_memory,
)
from fulcrum.rollout import worker_config, worker_image, worker_revision

CONTAINER: Final = "worker"
IMAGE_GROUP: Final = 10001
"""Group of the worker image's user, so that it may write to a claim."""
CACHE_PATH: Final = "/cache"
"""Where weights and compiled kernels are kept; the worker image's XDG_CACHE_HOME and HF_HOME point into it."""
KV_POOL: Final = "kv-pool"
GRACE_MARGIN_SECONDS: Final = 30
"""Between the end of the drain and SIGKILL: time for vLLM to end by itself."""
START_MARGIN_SECONDS: Final = 120
"""The agent judges a start by its progress and gives up first: its exit says more than a kubelet's kill. The startup
probe is for an agent that hangs itself."""


def worker_pod(
    owner: Owner,
    spec: InferenceClusterSpec,
    pool: Pool,
    *,
    ordinal: int,
    role: Role,
    image: str,
    kv_dtype: KvCacheDtype | None = None,
    model: ModelFacts | None = None,
    avoided_nodes: Iterable[str] = (),
    token_fingerprint: str | None = None,
) -> Manifest:
    """Return the Pod of worker `ordinal` of `pool`, created in `role` at epoch 0.

    `kv_dtype` is what the spec's element type of the KV cache came to; None: as the spec has it. `model` is what is
    known of the model; None: what its name says. The Pod rather goes to other nodes than `avoided_nodes`.

    `image` is used where the spec names none. With `token_fingerprint` the worker asks for the cluster's token, which
    has this fingerprint; without it the worker asks for none.
    """
    name = worker_name(owner.name, pool.name, ordinal)
    metadata = owner.metadata(name, WORKER)
    metadata["labels"] |= {LABEL_POOL: pool.name, **role_labels(role)}
    metadata["annotations"] = {
        ANNOTATION_ROLE_EPOCH: "0",
        ANNOTATION_SPEC_HASH: worker_revision(cluster=owner.name, spec=spec, pool=pool),
    }
    if worker_image(spec, pool) is None:
        metadata["annotations"][ANNOTATION_RELEASE_IMAGE] = image
    if token_fingerprint is not None:
        metadata["annotations"][ANNOTATION_TOKEN] = token_fingerprint
    by_name = facts_of_name(spec.model.name)
    known = model or by_name
    config = worker_config(cluster=owner.name, spec=spec, pool=pool, role=role, kv_dtype=kv_dtype, model=known)
    if known.attention is not by_name.attention:
        metadata["annotations"][ANNOTATION_ATTENTION] = known.attention.value
    if config.kv_cache.dtype != spec.engine.kv_cache.dtype.value:
        metadata["annotations"][ANNOTATION_KV_DTYPE] = config.kv_cache.dtype
    if said := without_defaults(pool.ports):
        metadata["annotations"][ANNOTATION_PORTS] = msgspec.json.encode(said).decode()
    if not config.exchanges_kv:
        metadata["annotations"][ANNOTATION_NO_KV] = "true"
    made = _pod_spec(owner, spec, pool, image, _container(spec, pool, config, known))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}
    template = {key: value for key, value in pool.template.items() if key in ("metadata", "spec") and value}
    merged = overlay(pod, template)
    _keep_requests_below_limits(merged)
    avoid(merged["spec"], avoided_nodes)
    # A template may add labels, but not change the ones that identify the Pod.
    merged["metadata"] = overlay(merged["metadata"], metadata)
    if token_fingerprint is not None:
        _ask_for_token(merged, owner)
    return merged


def _keep_requests_below_limits(pod: Manifest) -> None:
    """Drop a request of ours that is above the template's limit: Kubernetes refuses both, and takes a lone limit."""
    for container in _worker_containers(pod):
        amounts = container.get("resources") or {}
        if amounts.get("requests"):
            limits = amounts.get("limits") or {}
            amounts["requests"] = {
                name: amount for name, amount in amounts["requests"].items() if not is_more(amount, limits.get(name))
            }


def _ask_for_token(pod: Manifest, owner: Owner) -> None:
    """Give the worker its token, whatever the template says: with another one no gateway could speak to it."""
    for container in _worker_containers(pod):
        others = [entry for entry in container.get("env") or () if entry["name"] != ENV_WORKER]
        container["env"] = [*others, token_env(ENV_WORKER, owner.name)]


def _worker_containers(pod: Manifest) -> list[Manifest]:
    """Return the worker's container; nothing where a template took it away (such a template is refused)."""
    return [each for each in pod["spec"].get("containers") or () if each.get("name") == CONTAINER]


def role_labels(role: Role) -> dict[str, str]:
    """Return the labels that say a worker's role, ours and the one that other tools read."""
    return {LABEL_ROLE: role.value, LABEL_LLM_D_ROLE: LLM_D_ROLES[role]}


def _pod_spec(owner: Owner, spec: InferenceClusterSpec, pool: Pool, image: str, container: Manifest) -> Manifest:
    container["image"] = worker_image(spec, pool) or image
    volumes: list[Manifest] = [{"name": "cache", **_cache_source(spec)}, {"name": "tmp", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE_PATH}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 (a mount)
    if (shm := shared_memory(spec, pool)) is not None:
        volumes.append(shm)
        mounts.append({"name": shm["name"], "mountPath": "/dev/shm"})  # noqa: S108 (a mount)
    if (claim := spec.engine.kv_cache.pool_claim) is not None:
        volumes.append({"name": KV_POOL, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": KV_POOL, "mountPath": KV_POOL_PATH})
    container["volumeMounts"] = mounts
    return {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(spec.drain_timeout_seconds) + GRACE_MARGIN_SECONDS,
        "securityContext": {
            **POD_SECURITY,
            "fsGroup": IMAGE_GROUP,
            # Changing the group of a claim full of weights, file by file, takes minutes at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        **network(pool),
        **placement(owner, pool),
        "containers": [container],
        "volumes": volumes,
    }


def _container(spec: InferenceClusterSpec, pool: Pool, config: WorkerConfig, model: ModelFacts) -> Manifest:
    agent = pool.ports.agent
    # The agent does not count the time in which a download gets on.
    download_seconds = downloaded_bytes(spec, model) / SLOWEST_LOAD_BYTES_PER_SECOND
    start_seconds = config.longest_start_seconds + download_seconds + START_MARGIN_SECONDS
    return {
        "name": CONTAINER,
        "command": ["python3", "-m", "fulcrum_worker"],
        "env": [
            {"name": ENV_WORKER_CONFIG, "value": msgspec.json.encode(without_defaults(config)).decode()},
            *pod_identity_env(),
            *exchange_env(pool),
            *_credentials(spec),
        ],
        "ports": [
            {"name": name, "containerPort": port, **({"hostPort": port} if pool.on_host_network else {})}
            for name, port in named_ports(pool).items()
        ],
        "startupProbe": http_probe(PATH_STARTED, port=agent, period_seconds=1, failures=math.ceil(start_seconds)),
        "readinessProbe": http_probe("/readyz", port=agent, period_seconds=2, failures=3),
        "livenessProbe": http_probe("/healthz", port=agent, period_seconds=10, failures=3),
        "resources": resources(spec, pool, model),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(pool),
    }


def _cache_source(spec: InferenceClusterSpec) -> Manifest:
    if spec.model.cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": spec.model.cache.persistent_volume_claim}}


def _credentials(spec: InferenceClusterSpec) -> list[Manifest]:
    if spec.model.credentials is None:
        return []
    reference = {"name": spec.model.credentials.secret_name, "key": "token"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]
