"""Spec, the part about hardware: pools of interchangeable workers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from fulcrum.api.balance_types import Rollout
from fulcrum.api.base import MAX_WORKERS, ApiStruct, ConfigMapKey, Name, ObjectName, Quantity, Rules, rule
from fulcrum.api.engine_types import PoolEngine
from fulcrum.api.names import Role
from fulcrum.api.parallelism import Parallelism, backend_rules
from fulcrum.api.pod_types import GpuRequest, Rdma, Resources, Topology
from fulcrum.api.ports import USUAL_PORTS, Ports
from fulcrum.api.serving_types import MAX_CLASSES

_PoolRole = Annotated[
    Role,
    # `draining` is a state on the way, and no role that a pool could be given.
    Meta(extra_json_schema={"enum": [Role.PREFILL.value, Role.DECODE.value, Role.MIXED.value]}),
]
MAX_PROMPT_TOKENS: Final = 16_777_216
GPUS: Final = "self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data"
"""CEL over a pool: the GPUs of one worker (`Parallelism.gpus`)."""
_SIDE_CHANNELS: Final = "({0} < self.ports.nixl || {0} >= self.ports.nixl + self.parallelism.data)"
_RANK: Final = "self.parallelism.tensor * self.parallelism.pipeline"
"""CEL over a pool: the GPUs of one rank of data parallel."""


class WorkerCount(ApiStruct, frozen=True, kw_only=True):
    """Bounds on the number of workers."""

    min: Annotated[int, Meta(ge=0, le=MAX_WORKERS, description="Never fewer workers than this.")] = 0
    max: Annotated[
        int, Meta(ge=0, le=MAX_WORKERS, description="Never more workers than this; 0 switches the pool off.")
    ]

    rules: ClassVar[Rules] = (rule("self.min <= self.max", "min must not be above max"),)


class PoolAdmits(ApiStruct, frozen=True, kw_only=True):
    """Which requests may be sent to a pool."""

    min_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_PROMPT_TOKENS)] | None,
        Meta(description="Shortest prompt that is sent here, in tokens; default: no bound."),
    ] = None
    max_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PROMPT_TOKENS)] | None,
        Meta(description="Longest prompt that is sent here, in tokens; default: no bound."),
    ] = None
    classes: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=MAX_CLASSES,
            description="QoS classes that may be sent here; empty: every class.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()

    rules: ClassVar[Rules] = (
        rule(
            "!has(self.minPromptTokens) || !has(self.maxPromptTokens) || self.minPromptTokens <= self.maxPromptTokens",
            "minPromptTokens must not be above maxPromptTokens: no prompt would be sent here",
        ),
    )


def overlap(one: PoolAdmits | None, other: PoolAdmits | None) -> bool:
    """Return whether two pools can be sent the same request; None admits every request."""
    if one is None or other is None:
        return True
    shortest = max(one.min_prompt_tokens or 0, other.min_prompt_tokens or 0)
    longest = min(one.max_prompt_tokens or MAX_PROMPT_TOKENS, other.max_prompt_tokens or MAX_PROMPT_TOKENS)
    return shortest <= longest and (
        not one.classes or not other.classes or not set(one.classes).isdisjoint(other.classes)
    )


class PoolProfile(ApiStruct, frozen=True, kw_only=True):
    """Where it is written how fast the workers of a pool are."""

    config_map: Annotated[
        ObjectName, Meta(description="ConfigMap in the same namespace, such as `fulcrum capacity --export` fills.")
    ]
    key: Annotated[
        ConfigMapKey,
        Meta(description="Key of the ConfigMap's `data` that holds the profile, a JSON document."),
    ] = "profile.json"


class Pool(ApiStruct, frozen=True, kw_only=True):
    """Workers of one hardware and parallelism, hence interchangeable."""

    name: Annotated[Name, Meta(description="Name of the pool, unique in the cluster; part of its workers' names.")]
    accelerator: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=63,
            pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            description="Accelerator of the pool's workers, such as H100-SXM-80GB: they run on nodes that carry it as "
            "label fulcrum.dev/accelerator. `cpu` runs the engine on CPUs, on any node.",
        ),
    ]
    parallelism: Annotated[
        Parallelism, Meta(description="How one worker spreads over GPUs; the same for every worker of the pool.")
    ] = Parallelism()
    workers: Annotated[WorkerCount, Meta(description="Bounds on the number of workers.")]
    price_per_hour: Annotated[
        Annotated[float, Meta(ge=0.0001, le=100_000)] | None,
        Meta(
            description="Price of one GPU and hour (of one worker on CPUs), in the same currency in all pools: the "
            "balance then prefers the cheapest workers that keep the SLO. Set it in every pool or in none; absent: "
            "it prefers the fewest GPUs."
        ),
    ] = None
    roles: Annotated[
        tuple[_PoolRole, ...],
        Meta(
            min_length=1,
            max_length=3,
            description="Roles that its workers may take. prefill and decode together make them flippable; with mixed "
            "beside them, all workers may also do both for each request where that serves more. mixed alone: they "
            "always do both.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = (Role.PREFILL, Role.DECODE, Role.MIXED)
    profile: Annotated[
        PoolProfile | None,
        Meta(
            description="How fast workers of this kind were measured to be: the balance reckons with it until workers "
            "have measured themselves. Read again every minute; a change restarts nothing. Absent: the roofline of "
            "model and accelerator, which knows no CPUs."
        ),
    ] = None
    gpu: Annotated[GpuRequest, Meta(description="How a worker's GPUs are requested; unused on CPUs.")] = GpuRequest()
    rdma: Annotated[
        Rdma | None,
        Meta(
            description="RDMA devices of each worker, with the capability IPC_LOCK and UCX's RDMA transports; absent: "
            "KV goes from prefill to decode over TCP."
        ),
    ] = None
    ports: Annotated[
        Ports,
        Meta(
            description="Ports that each worker listens on. With rdma.hostNetwork they are ports of the node "
            "(hostPort): the scheduler places no two workers with a port in common on one node, and pools that may "
            "share nodes need unlike ports. Take ports below 32768, where a node's outgoing connections begin."
        ),
    ] = USUAL_PORTS
    resources: Annotated[Resources, Meta(description="CPU and memory of a worker, beside its GPUs.")] = Resources()
    shared_memory: Annotated[
        Quantity | None,
        Meta(description="Most that a worker may keep in /dev/shm; default: 4Gi for each GPU. Counts as its memory."),
    ] = None
    priority_class_name: Annotated[
        ObjectName | None, Meta(description="PriorityClass of the workers; default: the cluster's default.")
    ] = None
    topology: Annotated[Topology, Meta(description="Where workers are placed.")] = Topology()
    engine: Annotated[PoolEngine | None, Meta(description="What differs from spec.engine in this pool.")] = None
    rollout: Annotated[
        Rollout, Meta(description="How workers are replaced when the model, the engine or the template changes.")
    ] = Rollout()
    template: Annotated[
        dict[str, Any],
        Meta(
            description="Pod template merged over the generated worker Pod: `metadata` and `spec` as in a Pod "
            "(tolerations, nodeSelector, resources, volumes ...); the container is called `worker`, and null removes "
            "what was generated."
        ),
    ] = msgspec.field(default_factory=dict)
    admits: Annotated[
        PoolAdmits | None,
        Meta(description="Which requests may be sent to the pool; absent: every request."),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "!('mixed' in self.roles) || size(self.roles) != 2",
            "roles: mixed cannot be combined with only one of prefill and decode, because a mixed worker does both; "
            "use [mixed], [prefill, decode], or all three",
        ),
        rule(
            "self.accelerator != 'cpu' || (self.parallelism.tensor == 1 && self.parallelism.pipeline == 1)",
            "parallelism: a worker on CPUs is one engine; use tensor 1 and pipeline 1, and more workers, or "
            "data for a mixture of experts",
        ),
        rule(
            "self.parallelism.pipeline == 1 || self.roles.all(role, role == 'mixed')",
            "parallelism.pipeline: NIXL does not transfer KV between engines in pipeline parallel; raise tensor "
            "instead, or give the pool roles: [mixed], which exchanges no KV",
        ),
        rule(
            "self.accelerator != 'cpu' || !(has(self.gpu.resourceClaimTemplate) || has(self.gpu.perNode))",
            "gpu: a worker on CPUs has no GPUs; remove gpu, or name the accelerator",
        ),
        rule(
            f"has(self.gpu.perNode) || {GPUS} <= 16",
            "parallelism: tensor * pipeline * data is the number of GPUs of one worker, and a node has at most 16; for "
            "a worker on several nodes set gpu.perNode",
        ),
        rule(
            f"!has(self.gpu.perNode) || {GPUS} <= self.gpu.perNode || {GPUS} % self.gpu.perNode == 0",
            "gpu.perNode: a worker on several nodes has the same number of GPUs on each; make tensor * pipeline * data "
            "a multiple of perNode",
        ),
        rule(
            f"!has(self.gpu.perNode) || self.parallelism.data == 1 || {GPUS} <= self.gpu.perNode ||"
            f" self.gpu.perNode % ({_RANK}) == 0 || {_RANK} % self.gpu.perNode == 0",
            "gpu.perNode: a rank of parallelism.data is on one node, or has nodes of its own; make tensor * pipeline a "
            "divisor or a multiple of perNode",
        ),
        rule(
            f"self.parallelism.data == 1 || {_SIDE_CHANNELS.format('self.ports.engine')} &&"
            f" {_SIDE_CHANNELS.format('self.ports.agent')} && {_SIDE_CHANNELS.format('self.ports.ranks')}",
            "ports: each rank of parallelism.data has a side channel of its own, on the ports from nixl to nixl + data "
            "- 1, and one of them is another port of the worker; move it, or nixl",
        ),
        *backend_rules(),
    )

    @property
    def nodes(self) -> int:
        """Nodes of one worker; 1: it is a Pod. Worker and node both have at least one GPU."""
        return -(-self.parallelism.gpus // self.gpu.per_node) if self.gpu.per_node is not None else 1

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of one worker; 0 on CPUs."""
        return self.parallelism.gpus if self.accelerator != "cpu" else 0

    @property
    def expert_backend(self) -> str | None:
        """vLLM's `--all2all-backend` of its workers; None leaves it to vLLM."""
        return self.parallelism.backend(
            accelerator=self.accelerator,
            only_role=self.roles[0] if len(self.roles) == 1 else None,
            nodes=self.nodes,
            rdma=self.rdma is not None,
        )

    @property
    def on_host_network(self) -> bool:
        """Its workers use the network of their nodes."""
        return self.rdma is not None and self.rdma.host_network
