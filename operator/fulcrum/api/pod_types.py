"""Spec, the part about a worker's Pod: what it requests from its node, and where it is placed."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from fulcrum.api.base import ApiStruct, CpuQuantity, ObjectName, Quantity, Rules, rule

LABEL_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
ResourceName = Annotated[str, Meta(min_length=3, max_length=253, pattern=rf"^{_DOMAIN}/{LABEL_PART}$")]
"""Extended resource, such as nvidia.com/gpu."""
LabelKey = Annotated[str, Meta(min_length=1, max_length=253, pattern=rf"^({_DOMAIN}/)?{LABEL_PART}$")]


class GpuRequest(ApiStruct, frozen=True, kw_only=True):
    """How a worker's GPUs are requested."""

    resource: Annotated[
        ResourceName,
        Meta(
            description="Extended resource of one GPU: nvidia.com/gpu (which stands for amd.com/gpu on accelerators of "
            "AMD), a MIG profile such as nvidia.com/mig-3g.40gb, or deviceclass.resource.kubernetes.io/NAME for a "
            "DRA device class. A worker asks for tensor * pipeline * data (parallelism) of them."
        ),
    ] = "nvidia.com/gpu"
    resource_claim_template: Annotated[
        ObjectName | None,
        Meta(
            description="ResourceClaimTemplate (DRA) in the same namespace that allocates all GPUs of one Pod of a "
            "worker; it is used instead of `resource`."
        ),
    ] = None
    per_node: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None,
        Meta(
            description="GPUs of one node. A worker that needs more (tensor * pipeline * data) is a group of "
            "Pods on several nodes: a LeaderWorkerSet, whose controller must be installed. Default: a worker "
            "is one Pod on one node."
        ),
    ] = None


class Rdma(ApiStruct, frozen=True, kw_only=True):
    """RDMA devices of a worker."""

    resource: Annotated[
        ResourceName, Meta(description="Extended resource of the node's RDMA device plugin, such as rdma/ib.")
    ] = "rdma/ib"
    count: Annotated[int, Meta(ge=1, le=16, description="How many of it a worker asks for.")] = 1
    devices: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+(:[0-9]+)?$")], ...],
        Meta(
            max_length=32,
            description="Network devices that UCX may use (UCX_NET_DEVICES), such as mlx5_0:1; empty: all that the "
            "Pod sees. Name the Pod's own interface as well (eth0): handshakes go over TCP.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    socket_interface: Annotated[
        Annotated[str, Meta(min_length=1, max_length=15, pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        Meta(
            description="Interface by which the ranks of a worker find each other (NCCL_SOCKET_IFNAME, "
            "GLOO_SOCKET_IFNAME), where an SR-IOV network adds others to eth0; default: the libraries' choice."
        ),
    ] = None
    run_as_root: Annotated[
        bool,
        Meta(
            description="Run the worker as root, so that IPC_LOCK holds: for nodes whose container runtime has no "
            "LimitMEMLOCK=infinity. Only where the operator runs with --allow-host-access."
        ),
    ] = False
    host_network: Annotated[
        bool,
        Meta(
            description="Workers use the network of their node, for RDMA devices that Pods cannot get. NetworkPolicies "
            "do not hold for them. A node runs one worker with the same `ports`. All pools that exchange KV set it, or "
            "none. Only where the operator runs with --allow-host-access."
        ),
    ] = False


class ResourceAmounts(ApiStruct, frozen=True, kw_only=True):
    """CPU and memory."""

    cpu: Annotated[CpuQuantity | None, Meta(description="CPU cores, such as 8 or 500m.")] = None
    memory: Annotated[Quantity | None, Meta(description="Memory, such as 64Gi.")] = None


class Resources(ApiStruct, frozen=True, kw_only=True):
    """CPU and memory of a worker."""

    requests: Annotated[
        ResourceAmounts,
        Meta(
            description="What is reserved on the node. Default for each GPU: 2 CPUs and 8Gi. Default on CPUs: 250m, "
            "and memory for weights (where the model is known), KV cache and engine."
        ),
    ] = ResourceAmounts()
    limits: Annotated[
        ResourceAmounts,
        Meta(description="What the worker never exceeds; absent: no limit. A worker above its memory limit is killed."),
    ] = ResourceAmounts()


class Topology(ApiStruct, frozen=True, kw_only=True):
    """Where workers are placed; preferences that never keep a worker from being scheduled."""

    spread_over: Annotated[
        LabelKey,
        Meta(description="Node label over whose values the pool's workers are spread, so that few are lost at once."),
    ] = "kubernetes.io/hostname"
    keep_within: Annotated[
        LabelKey,
        Meta(
            description="Node label by which workers that exchange KV are kept together: a zone, or the label of your "
            "racks or NVLink domains."
        ),
    ] = "topology.kubernetes.io/zone"

    rules: ClassVar[Rules] = (
        rule(
            "self.spreadOver != self.keepWithin",
            "topology: spreadOver and keepWithin are the same label, so they would work against each other; "
            "spread over a smaller domain than the one to keep within",
        ),
    )
