"""What a worker's Pod asks of its node: GPUs, RDMA devices, CPU and memory, and a place near its peers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fulcrum.api.amd import AMD_RESOURCE, is_amd
from fulcrum.api.names import LABEL_ACCELERATOR, LABEL_POOL
from fulcrum.api.pod_types import GpuRequest
from fulcrum.api.pool_attention import exchanges_kv
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.children.owner import CONTAINER_SECURITY, WORKER, Manifest, Owner

GPU_CPU_CORES: Final = 2
"""CPU requested for each GPU: the engine's scheduler and one process for each rank keep about that busy. Small enough
for machines with 4 cores for one GPU."""
GPU_MEMORY_GIBIBYTES: Final = 8
"""Memory requested for each GPU: processes, pinned buffers and shared memory. Weights pass through the page cache."""
GPU_SHARED_MEMORY_GIBIBYTES: Final = 4
"""Bound of /dev/shm for each GPU: NCCL's buffers and vLLM's queues between ranks take less."""
CPU_SHARED_MEMORY: Final = "64Mi"
"""What a container has by default; a CPU engine of one process needs no more beside what it offloads."""
CPU_RANK_SHARED_MEMORY_GIBIBYTES: Final = 1
"""Bound of /dev/shm for each process of a CPU engine of several: they exchange tokens through it."""
CPU_REQUEST_MILLICORES: Final = 250
"""CPU requested for each engine process on CPUs."""
CPU_ENGINE_BYTES: Final = 1 << 30
"""Memory of an engine process on CPUs beside weights and KV cache."""
CPU_KV_BYTES: Final = 1 << 30
"""KV cache of an engine process on CPUs whose spec sets none."""
CACHE_BYTES: Final = 8 << 30
"""Disk of a worker on GPUs beside its weights: compiled kernels, CUDA graphs' caches and logs."""
CLAIM: Final = "gpus"
_MEBIBYTE: Final = 1 << 20


def on_gpu(pool: Pool) -> bool:
    """Report whether the pool's workers have GPUs."""
    return pool.accelerator != "cpu"


def gpus(pool: Pool) -> int:
    """GPUs of one Pod of a worker; 0 on CPUs."""
    return pool.gpus_per_worker // pool.nodes


def resources(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> Manifest:
    """Return requests and limits of the worker's container. There are always requests: BestEffort Pods die first."""
    limits, requests = _amounts(pool.resources.limits), _amounts(pool.resources.requests)
    for name, amount in _default_requests(spec, pool, model).items():
        # Without a request Kubernetes takes the limit for it.
        if name not in limits:
            requests.setdefault(name, amount)
    for name, count in _devices(pool).items():
        limits[name] = requests[name] = str(count)
    made: Manifest = {"requests": requests}
    if limits:
        made["limits"] = limits
    if _claims(pool):
        made["claims"] = [{"name": CLAIM}]
    return made


def _amounts(amounts: msgspec.Struct) -> dict[str, str]:
    return {name: amount for name, amount in msgspec.structs.asdict(amounts).items() if amount is not None}


def _default_requests(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts) -> dict[str, str]:
    count = gpus(pool)
    if count:
        asked = {"cpu": str(GPU_CPU_CORES * count), "memory": _and_offload(spec, f"{GPU_MEMORY_GIBIBYTES * count}Gi")}
        if disk := downloaded_bytes(spec, model):
            asked["ephemeral-storage"] = f"{-(-(disk + CACHE_BYTES) // _MEBIBYTE)}Mi"
        return asked
    cache, ranks = spec.engine.kv_cache.memory, pool.parallelism.gpus
    kv_bytes = ranks * CPU_KV_BYTES if cache is None else number_of_bytes(cache)
    # Ranks share experts, if any: all weights in each of them is the most that it can be.
    needed = ranks * (CPU_ENGINE_BYTES + _weight_bytes(model)) + kv_bytes + _offload_bytes(spec)
    return {"cpu": f"{ranks * CPU_REQUEST_MILLICORES}m", "memory": f"{-(-needed // _MEBIBYTE)}Mi"}


def _offload_bytes(spec: InferenceClusterSpec) -> int:
    offload = spec.engine.kv_cache.offload
    return number_of_bytes(offload.host_memory) if offload is not None else 0


def _and_offload(spec: InferenceClusterSpec, amount: str) -> str:
    """Return the amount of memory and the host tier's; the amount as it was written where there is none."""
    more = _offload_bytes(spec)
    return f"{-(-(number_of_bytes(amount) + more) // _MEBIBYTE)}Mi" if more else amount


def _weight_bytes(model: ModelFacts) -> int:
    return int(model.dimensions.weight_bytes()) if model.dimensions is not None else 0


def downloaded_bytes(spec: InferenceClusterSpec, model: ModelFacts) -> int:
    """Return the weights that each Pod of a worker downloads to its own disk; 0: none, or an unknown size."""
    local = spec.model.cache is not None or spec.model.name.startswith(("/", "."))
    return 0 if local else _weight_bytes(model)


def _devices(pool: Pool) -> dict[str, int]:
    devices = {}
    if on_gpu(pool) and not _claims(pool):
        # What the field says where nothing was written is NVIDIA's, which no node of AMD's has.
        stands = is_amd(pool.accelerator) and pool.gpu.resource == GpuRequest().resource
        devices[AMD_RESOURCE if stands else pool.gpu.resource] = gpus(pool)
    if pool.rdma is not None:
        devices[pool.rdma.resource] = devices.get(pool.rdma.resource, 0) + pool.rdma.count
    return devices


def _claims(pool: Pool) -> bool:
    return on_gpu(pool) and pool.gpu.resource_claim_template is not None


def container_security(pool: Pool) -> Manifest:
    """Return the security context of the worker's container."""
    if pool.rdma is None:
        return dict(CONTAINER_SECURITY)
    # RDMA registers (locks) the memory that it reads and writes. A capability that is added holds for root alone: as
    # another user the worker needs a runtime that does not limit locked memory, which its agent checks.
    security = {**CONTAINER_SECURITY, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    return security | {"runAsUser": 0, "runAsNonRoot": False} if pool.rdma.run_as_root else security


def network(pool: Pool) -> Manifest:
    """Return the fields of the Pod's spec that choose its network."""
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if pool.on_host_network else {}


def named_ports(pool: Pool) -> dict[str, int]:
    """Return the ports of the worker's container by name. On the node's network all that it listens on count."""
    named = {"engine": pool.ports.engine, "agent": pool.ports.agent, "nixl": pool.ports.nixl}
    if not pool.on_host_network:
        return named
    # Each rank of data parallel has a side channel of its own, whose port vLLM counts on from the first one's.
    channels = {f"nixl-{rank}": pool.ports.nixl + rank for rank in range(1, pool.parallelism.data)}
    return named | channels | ({"ranks": pool.ports.ranks} if pool.nodes > 1 else {})


def shared_memory(spec: InferenceClusterSpec, pool: Pool) -> Manifest | None:
    """Return the volume for /dev/shm. Ranks talk through it and KV is offloaded to it; containers have 64 MiB."""
    ranks = pool.parallelism.gpus
    if not on_gpu(pool) and not _offload_bytes(spec) and ranks == 1:
        return None
    several = f"{CPU_RANK_SHARED_MEMORY_GIBIBYTES * ranks}Gi" if ranks > 1 else CPU_SHARED_MEMORY
    own = f"{GPU_SHARED_MEMORY_GIBIBYTES * gpus(pool)}Gi" if on_gpu(pool) else several
    size = _and_offload(spec, pool.shared_memory or own)
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def avoid(pod_spec: Manifest, nodes: Iterable[str]) -> None:
    """Add that the Pod rather goes to other nodes, whatever its template says of affinity.

    A preference: a node with one broken GPU has good ones, too, and a cluster in which every node was named must still
    be served. A field of the node is asked for, not its label: labels can differ from names.
    """
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    if others:
        affinity = pod_spec.get("affinity") or {}
        of_nodes = affinity.get("nodeAffinity") or {}
        preferred = of_nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        terms = [*preferred, {"weight": 100, "preference": {"matchFields": others}}]
        of_nodes = {**of_nodes, "preferredDuringSchedulingIgnoredDuringExecution": terms}
        pod_spec["affinity"] = {**affinity, "nodeAffinity": of_nodes}


def placement(owner: Owner, pool: Pool) -> Manifest:
    """Return the fields of the Pod's spec that choose its node."""
    chosen: Manifest = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": pool.topology.spread_over,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {**owner.selector(WORKER), LABEL_POOL: pool.name}},
            }
        ]
    }
    if exchanges_kv(pool):
        near = {
            "topologyKey": pool.topology.keep_within,
            "labelSelector": {"matchLabels": owner.selector(WORKER)},
        }
        preferred = [{"weight": 100, "podAffinityTerm": near}]
        chosen["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    if on_gpu(pool):
        chosen["nodeSelector"] = {LABEL_ACCELERATOR: pool.accelerator}
    if _claims(pool):
        chosen["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": pool.gpu.resource_claim_template}]
    if pool.priority_class_name is not None:
        chosen["priorityClassName"] = pool.priority_class_name
    return chosen
