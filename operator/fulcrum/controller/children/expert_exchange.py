"""What the libraries that carry tokens to the experts of other ranks read of a worker's environment.

Source: the recipe for DeepSeek-R1 of llm-d (guides/wide-ep-lws, modelserver/gpu/vllm), and NVSHMEM's list of
environment variables. A pool's template wins.
"""

from __future__ import annotations

from collections.abc import Iterator

from fulcrum.api.types import Pool
from fulcrum.controller.children.owner import Manifest


def exchange_env(pool: Pool) -> list[Manifest]:
    """Return the variables; none for a worker of one rank."""
    return [{"name": name, "value": value} for name, value in _variables(pool)] if pool.parallelism.data > 1 else []


def _variables(pool: Pool) -> Iterator[tuple[str, str]]:
    # Devices as ib_write_bw and NCCL name them (mlx5_0:1); without a port it is an interface of the Pod.
    adapters = ",".join(name for name in (pool.rdma.devices if pool.rdma is not None else ()) if ":" in name)
    if adapters:
        yield "NCCL_IB_HCA", adapters
    if pool.expert_backend not in ("deepep_high_throughput", "deepep_low_latency"):
        return
    # The container runtime then hands the device of GDRCopy to the Pod, where the node has it.
    yield "NVIDIA_GDRCOPY", "enabled"
    if pool.rdma is None:
        return
    # GPUs post their own work to the network adapter.
    yield "NVSHMEM_REMOTE_TRANSPORT", "ibgda"
    yield "NVSHMEM_IB_ENABLE_IBGDA", "true"
    if pool.rdma.socket_interface is not None:
        yield "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", pool.rdma.socket_interface
    if adapters:
        yield "NVSHMEM_HCA_LIST", adapters
        yield "NVSHMEM_ENABLE_NIC_PE_MAPPING", "1"
