"""Every name that two rooms must agree on: API group, labels, ports, environment variables, child names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

GROUP: Final = "fulcrum.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceCluster"
PLURAL: Final = "inferenceclusters"
SINGULAR: Final = "inferencecluster"
SHORT_NAME: Final = "ic"

SCALE_KIND: Final = "InferenceScale"
SCALE_PLURAL: Final = "inferencescales"
SCALE_SINGULAR: Final = "inferencescale"
SCALE_SHORT_NAME: Final = "isc"

FRONT_KIND: Final = "InferenceGateway"
FRONT_PLURAL: Final = "inferencegateways"
FRONT_SINGULAR: Final = "inferencegateway"
FRONT_SHORT_NAME: Final = "ig"

FIELD_MANAGER: Final = "fulcrum-controller"
"""Field manager of everything that the controller applies."""

LABEL_PROMETHEUS_ACCESS: Final = f"{GROUP}/prometheus-access"
"""With the value `true` on a Secret: the operator may send what is in it to the server that a spec names."""
LABEL_CLUSTER: Final = f"{GROUP}/cluster"
LABEL_FRONT: Final = f"{GROUP}/inference-gateway"
"""On what belongs to an InferenceGateway: its name."""
LABEL_POOL: Final = f"{GROUP}/pool"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_ACCELERATOR: Final = f"{GROUP}/accelerator"
"""Label of nodes, by which GPU workers find theirs."""
LABEL_LLM_D_ROLE: Final = "llm-d.ai/role"
LABEL_GROUP: Final = "leaderworkerset.sigs.k8s.io/name"
"""On Pods of a worker on several nodes: the name of its LeaderWorkerSet, set by that project's controller."""
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

ANNOTATION_ROLE_EPOCH: Final = f"{GROUP}/role-epoch"
_EPOCH_DIGITS: Final = 15
"""Digits of the largest epoch that is read: each flip counts one, and JSON numbers are exact up to here."""
ANNOTATION_ROLE_SINCE: Final = f"{GROUP}/role-since"
"""When the worker was last flipped (RFC 3339): dwell times survive a restart of the operator."""
ANNOTATION_SPEC_HASH: Final = f"{GROUP}/spec-hash"
"""Hash of the part of the spec that a worker Pod was made from; another hash means another revision."""
ANNOTATION_RELEASE_IMAGE: Final = f"{GROUP}/release-image"
"""On a worker for which the spec named no image: the image that the operator's release chose."""
ANNOTATION_RESTART: Final = f"{GROUP}/restart"
"""On a worker that drains to be made anew: the reason."""
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
ANNOTATION_CONTINUE_ROLLOUT: Final = f"{GROUP}/continue-rollout"
"""Generation whose rollout goes on although fewer requests are inside the SLO than promised."""
ANNOTATION_KV_DTYPE: Final = f"{GROUP}/kv-cache-dtype"
"""What `kvCache.dtype: auto` came to when the worker was made; absent: vLLM's own auto."""
ANNOTATION_ATTENTION: Final = f"{GROUP}/attention"
"""The kind of attention that a worker was made for, where the model's name does not say it."""
ANNOTATION_NO_KV: Final = f"{GROUP}/exchanges-no-kv"
"""On workers that were made without KV transfer, because their pool was only ever mixed."""
ANNOTATION_REPLACES: Final = f"{GROUP}/replaces"
"""Uid of the Pod that a worker was created for beyond the wanted number, to take its place once it is ready."""
ANNOTATION_PORTS: Final = f"{GROUP}/ports"
"""On workers that listen on other ports than the usual: JSON of `api.ports.Ports`, without those that are usual."""
ANNOTATION_POD_GROUP: Final = "scheduling.k8s.io/group-name"
"""Volcano's: the PodGroup of a Pod, which is scheduled with all others of it."""
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's: the LocalQueue that admits an object."""

OPERATOR_NAMESPACE: Final = "fulcrum-system"
OPERATOR_NAME: Final = "fulcrum-operator"
"""Name of the operator's Deployment, ServiceAccount, roles and Lease."""

COMPONENT_WORKER: Final = "worker"
COMPONENT_FOLLOWER: Final = "follower"
"""A Pod of a worker on several nodes that only has part of its GPUs: nothing is sent to it."""
COMPONENT_GATEWAY: Final = "gateway"
COMPONENT_FRONT: Final = "front"
"""Pods of an InferenceGateway."""
COMPONENT_BATCH: Final = "batch"
COMPONENT_PRELOAD: Final = "preload"
"""The Pod that keeps files and runs batches."""
COMPONENT_OPERATOR: Final = "operator"

TTFT_PARAM: Final = "ttft_seconds"
"""Field of `kv_transfer_params`: what the TTFT promise leaves for the prefill when the gateway sends a request."""

PORT_ENGINE: Final = 8000
"""Usual port of vLLM itself; requests never pass through a process of ours on the worker."""
PORT_AGENT: Final = 8001
PORT_NIXL: Final = 5600
"""NIXL side channel (handshakes between engines). vLLM adds the data-parallel rank."""
PORT_RANKS: Final = 29501
"""Where the ranks of a worker on several nodes find each other: vLLM's `--master-port`, at its default."""
PORT_GATEWAY: Final = 8080
PORT_GATEWAY_INSIDE: Final = 8082
"""`GET /metrics`, `/kv-pairs` and `/loads` of a gateway: for the cluster, not for clients."""
PORT_BATCH: Final = 8083
"""Files and batches: for the gateways of the cluster, not for clients."""
PORT_OPERATOR_HEALTH: Final = 8081
"""`GET /healthz` of the operator."""

HEADER_RANK: Final = "X-data-parallel-rank"
"""Header of a request by which vLLM (0.32.0, `entrypoints/generate/base/serving.py`) gives it to a rank of data
parallel."""
HEADER_POD: Final = "x-fulcrum-pod"
"""Name of the Pod whose agent answers; on a request, of the Pod that is meant: addresses are used again."""

KV_POOL_PATH: Final = "/kv-pool"
"""Where the volume of the KV pool is mounted in a worker."""
ENV_WORKER_CONFIG: Final = "FULCRUM_WORKER_CONFIG"
"""JSON of `api.worker.WorkerConfig`."""
ENV_GATEWAY_CONFIG: Final = "FULCRUM_GATEWAY_CONFIG"
"""JSON of `api.gateway.GatewayConfig`."""
ENV_FRONT_CONFIG: Final = "FULCRUM_FRONT_CONFIG"
"""JSON of `api.front.FrontConfig`."""
ENV_BATCH_CONFIG: Final = "FULCRUM_BATCH_CONFIG"
"""JSON of `api.batch.BatchConfig`."""
FRONT_KEYS_PATH: Final = "/etc/fulcrum/api-keys"
"""Where the Secrets with API keys are mounted in a front, each in a folder of its name."""
VOLUME_API_KEYS: Final = "api-keys"
"""Volume of a gateway with API keys."""
ENV_GROUP_LEADER: Final = "LWS_LEADER_ADDRESS"
"""Host name of the first Pod of a worker on several nodes, set by the controller of LeaderWorkerSets."""
ENV_GROUP_INDEX: Final = "LWS_WORKER_INDEX"
"""Number of the Pod in its group; 0 leads."""
ENV_POD_IP: Final = "POD_IP"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"


class Role(StrEnum):
    """What a worker is routed to for; only a label, because every engine is `kv_both`."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    DRAINING = "draining"


LLM_D_ROLES: Final = {
    Role.PREFILL: "prefill",
    Role.DECODE: "decode",
    Role.MIXED: "prefill-decode",
    # llm-d counts a Pod without the label as decode, so "in no role" is a value that no selector has.
    Role.DRAINING: "draining",
}


def role_epoch(annotations: Mapping[str, str] | None) -> int:
    """Return the number of a worker's last role change; 0 for what no operator has written."""
    said = (annotations or {}).get(ANNOTATION_ROLE_EPOCH, "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) <= _EPOCH_DIGITS else 0


def worker_name(cluster: str, pool: str, ordinal: int) -> str:
    """Name of a new worker Pod: `<cluster>-<pool>-<ordinal>`.

    Only labels say whose Pod it is: cluster `a-b` with pool `c` and cluster `a` with pool `b-c` make the same names.
    The one that finds a name taken uses the next ordinal.
    """
    return f"{cluster}-{pool}-{ordinal}"


def leader_name(group: str) -> str:
    """Name of the first Pod of a worker on several nodes; `group` is what `worker_name` says."""
    return f"{group}-0"


def gateway_name(cluster: str) -> str:
    """Name of the gateway's Deployment, Service, ServiceAccount, Role, RoleBinding and budget."""
    return f"{cluster}-gateway"


def batch_name(cluster: str) -> str:
    """Name of the batch process's Deployment, ServiceAccount and NetworkPolicy."""
    return f"{cluster}-batch"


def preload_name(cluster: str, digest: str) -> str:
    """Name of the Job that downloads weights."""
    return f"{cluster}-preload-{digest}"


def front_name(inference_gateway: str) -> str:
    """Name of everything that an InferenceGateway owns: Deployment, Service, role, budget."""
    return f"{inference_gateway}-front"


def workers_budget_name(cluster: str) -> str:
    """Name of the PodDisruptionBudget over a cluster's workers."""
    return f"{cluster}-workers"


def workers_policy_name(cluster: str) -> str:
    """Name of the NetworkPolicy of a cluster's workers."""
    return f"{cluster}-workers"


def scale_name(cluster: str, pool: str, role: Role) -> str:
    """Name of the InferenceScale of a role of a pool."""
    return f"{cluster}-{pool}-{role.value}"
