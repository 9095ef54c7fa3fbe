"""InferenceCluster (`fulcrum.dev/v1alpha1`) as typed, frozen values.

One source for the whole API: the CRD in `crds/` is generated from these types (descriptions, defaults, bounds and CEL
rules included), and the controller reads objects through them. Field names are camelCase on the wire.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from fulcrum.api.adapter_types import Adapter, Adapters, AdapterStatus
from fulcrum.api.attention import KNOWN_ACCELERATORS
from fulcrum.api.balance_types import (
    Balance,
    BalanceMode,
    Flip,
    FlipStyle,
    Forecast,
    ForecastMethod,
    IdleDepth,
    Ratio,
    Recommend,
    RehearsePolicy,
    Rollout,
    ScaleDown,
)
from fulcrum.api.base import ApiStruct, Duration, Image, Name, ObjectName, PositiveDuration, Quantity, Rules, rule
from fulcrum.api.batch_types import BATCH_RULES, Batch
from fulcrum.api.durations import seconds
from fulcrum.api.engine_types import (
    Engine,
    KvCache,
    KvCacheDtype,
    KvOffload,
    KvPool,
    LoadFailurePolicy,
    OffloadEviction,
    OffloadPolicy,
    PoolEngine,
    Transfer,
)
from fulcrum.api.gateway_types import Gateway, GatewayAuth
from fulcrum.api.names import API_VERSION, KIND
from fulcrum.api.parallelism import Parallelism
from fulcrum.api.pool_types import Pool, PoolAdmits, WorkerCount
from fulcrum.api.pooling import POOLING_RULES
from fulcrum.api.scheduling_types import Gang, Scheduling
from fulcrum.api.serving_types import (
    Admission,
    AdmissionPolicy,
    ClassMatch,
    Credentials,
    Metrics,
    Model,
    ModelCache,
    ModelTask,
    Prometheus,
    QosClass,
    Slo,
)
from fulcrum.api.status import (
    BatchesStatus,
    Candidate,
    Condition,
    ConditionStatus,
    ConditionType,
    DecidedLoad,
    Decision,
    Explanation,
    FailedGpu,
    ForecastStatus,
    InferenceClusterStatus,
    KvCacheStatus,
    KvRoute,
    KvTierStatus,
    LatencyQuantiles,
    PreloadState,
    PreloadStatus,
    Recommendation,
    RecommendedPool,
    RehearsalStatus,
    RoleCounts,
    SleepState,
    SleepStatus,
    SlowWorker,
)
from fulcrum.api.telemetry_types import Telemetry, Tracing

__all__ = [
    "Adapter",
    "AdapterStatus",
    "Adapters",
    "Admission",
    "AdmissionPolicy",
    "Balance",
    "BalanceMode",
    "BatchesStatus",
    "Candidate",
    "ClassMatch",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Credentials",
    "DecidedLoad",
    "Decision",
    "Duration",
    "Engine",
    "Explanation",
    "FailedGpu",
    "Flip",
    "FlipStyle",
    "Forecast",
    "ForecastMethod",
    "ForecastStatus",
    "Gang",
    "Gateway",
    "GatewayAuth",
    "IdleDepth",
    "Image",
    "InferenceCluster",
    "InferenceClusterSpec",
    "InferenceClusterStatus",
    "KvCache",
    "KvCacheDtype",
    "KvCacheStatus",
    "KvOffload",
    "KvPool",
    "KvRoute",
    "KvTierStatus",
    "LatencyQuantiles",
    "LoadFailurePolicy",
    "Metrics",
    "Model",
    "ModelCache",
    "ModelTask",
    "Name",
    "ObjectMeta",
    "ObjectName",
    "OffloadEviction",
    "OffloadPolicy",
    "Parallelism",
    "Pool",
    "PoolAdmits",
    "PoolEngine",
    "PositiveDuration",
    "PreloadState",
    "PreloadStatus",
    "Prometheus",
    "QosClass",
    "Quantity",
    "Ratio",
    "Recommend",
    "Recommendation",
    "RecommendedPool",
    "RehearsalStatus",
    "RehearsePolicy",
    "RoleCounts",
    "Rollout",
    "ScaleDown",
    "Scheduling",
    "SleepState",
    "SleepStatus",
    "Slo",
    "SlowWorker",
    "Telemetry",
    "Tracing",
    "Transfer",
    "WorkerCount",
]


_EXCHANGES: Final = "{0}.workers.max > 0 && {0}.roles.exists(role, role != 'mixed')"
_BACKEND: Final = (
    "has({0}.engine) && has({0}.engine.attentionBackend) ? {0}.engine.attentionBackend"
    " : has(self.engine.attentionBackend) ? self.engine.attentionBackend : ''"
)
_IMAGE: Final = "has({0}.engine) && has({0}.engine.image) ? {0}.engine.image : ''"


_DRAINED_ANSWER_TOKENS: Final = 1024
"""Tokens of an answer that a drain waits for where the spec does not say how long; longer answers are rare in chats."""
_LEAST_DRAIN_SECONDS: Final = 120.0
_LONGEST_DRAIN_SECONDS: Final = 3600.0
"""Bounds of that wait, in seconds: what stored objects have that were made before it followed the promise, and the
longest `drainTimeout`."""


class InferenceClusterSpec(ApiStruct, frozen=True, kw_only=True):
    """What is wanted: a model, a latency promise, and the hardware to keep it with."""

    model: Annotated[Model, Meta(description="The model that is served.")]
    slo: Annotated[
        Slo,
        Meta(description="The latency that is promised: what workers are sized for, and what is counted as attained."),
    ] = Slo()
    pools: Annotated[
        tuple[Pool, ...],
        Meta(
            min_length=1,
            max_length=16,
            description="Workers, by hardware. Together the pools must be able to prefill and to decode.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    engine: Annotated[Engine, Meta(description="The inference engine (vLLM) of every worker.")] = Engine()
    adapters: Annotated[
        Adapters | None,
        Meta(description="LoRA adapters, served beside the model; absent: none. See docs/operations/adapters.md."),
    ] = None
    balance: Annotated[Balance, Meta(description="How roles and worker counts are decided.")] = Balance()
    admission: Annotated[Admission, Meta(description="Early rejection and QoS classes.")] = Admission()
    scheduling: Annotated[
        Scheduling, Meta(description="How all Pods of a worker on several nodes are placed at once.")
    ] = Scheduling()
    gateway: Annotated[Gateway, Meta(description="The OpenAI-compatible endpoint.")] = Gateway()
    batch: Annotated[
        Batch | None,
        Meta(
            description="OpenAI's files and batches (/v1/files, /v1/batches) at the endpoint; absent: none. See "
            "docs/operations/batch.md."
        ),
    ] = None
    metrics: Annotated[Metrics, Meta(description="Where load history comes from.")] = Metrics()
    telemetry: Annotated[Telemetry, Meta(description="What is told of single requests.")] = Telemetry()

    def engine_args(self, pool: Pool) -> tuple[str, ...]:
        """Return the extra engine arguments of the workers of `pool`: those of all pools, then its own."""
        return (*self.engine.args, *(pool.engine.args if pool.engine is not None else ()))

    @property
    def drain_timeout_seconds(self) -> float:
        """Longest drain of a worker: `balance.flip.drainTimeout`, or the time of a long answer within the promise."""
        if (said := self.balance.flip.drain_timeout) is not None:
            return seconds(said)
        answer_seconds = seconds(self.slo.ttft) + _DRAINED_ANSWER_TOKENS * seconds(self.slo.tpot)
        return min(max(_LEAST_DRAIN_SECONDS, answer_seconds), _LONGEST_DRAIN_SECONDS)

    rules: ClassVar[Rules] = (
        rule(
            "self.pools.exists(p, p.workers.max > 0 && 'prefill' in p.roles)"
            " || !self.pools.exists(p, p.workers.max > 0 && 'decode' in p.roles)",
            "pools: no pool with workers can prefill, so nothing would reach the decode workers; "
            "add the role prefill to a pool, or give it workers, or use the role mixed",
        ),
        rule(
            "self.pools.exists(p, p.workers.max > 0 && 'decode' in p.roles)"
            " || !self.pools.exists(p, p.workers.max > 0 && 'prefill' in p.roles)",
            "pools: no pool with workers can decode, so no prefilled request would be answered; "
            "add the role decode to a pool, or give it workers, or use the role mixed",
        ),
        rule(
            "!has(self.balance.ratio) || self.pools.exists(p, 'prefill' in p.roles)",
            "balance.ratio: every pool is mixed, so there are no prefill and decode workers to count; "
            "remove the ratio, or give a pool the roles prefill and decode",
        ),
        rule(
            "self.pools.all(p, !has(p.admits) || !has(p.admits.classes) || p.admits.classes.all(name,"
            " has(self.admission.classes) && self.admission.classes.exists(c, c.name == name)))",
            "pools[].admits.classes: names a class that is not in admission.classes",
        ),
        rule(
            "!has(self.balance.rehearse) || self.balance.rehearse != 'On' || self.gateway.record == 'On'",
            'balance.rehearse: plays what gateways remember, and gateway.record is Off; set gateway.record: "On", or '
            "remove balance.rehearse",
        ),
        rule(
            "!has(self.balance.idleAfter) || self.pools.all(p, p.workers.min == 0)",
            "balance.idleAfter: a pool has workers.min above 0, so its workers could never be removed; set "
            "workers.min: 0 in every pool, or remove balance.idleAfter",
        ),
        rule(
            "self.balance.idleDepth != 'Engines' || self.pools.all(p, p.accelerator != 'cpu')",
            "balance.idleDepth: a pool has the accelerator cpu, and vLLM's sleep mode needs GPUs; set idleDepth: Pods",
        ),
        rule(
            "self.balance.idleDepth != 'Engines' || self.pools.all(p, p.roles.all(r, r == 'mixed'))",
            "balance.idleDepth: a pool exchanges KV, and NIXL cannot move KV after an engine slept: its memory was "
            "registered at the start, and is another one after the wake; set idleDepth: Pods, or roles: [mixed] in "
            "every pool",
        ),
        rule(
            "!has(self.adapters) || !has(self.balance.sleepLevel) || self.balance.sleepLevel < 2",
            "balance.sleepLevel: at level 2 engines lose their adapters; use level 1, or remove adapters",
        ),
        rule(
            "self.pools.all(p, has(p.pricePerHour)) || self.pools.all(p, !has(p.pricePerHour))",
            "pools[].pricePerHour: some pools have a price and others have none, so their costs cannot be compared; "
            "set it in every pool, or in none",
        ),
        rule(
            f"self.pools.all(p, !({_EXCHANGES.format('p')}) || self.pools.all(q, !({_EXCHANGES.format('q')})"
            f" || ({_BACKEND.format('p')}) == ({_BACKEND.format('q')})))",
            "pools[].engine.attentionBackend: pools that exchange KV have unlike attention backends, so NIXL would "
            "refuse every transfer; set the same one in all of them, or set engine.attentionBackend alone",
        ),
        rule(
            "self.engine.kvCache.dtype != 'fp8' || self.pools.all(p, !("
            + _EXCHANGES.format("p")
            + f") || p.accelerator.matches('{KNOWN_ACCELERATORS}') || ({_BACKEND.format('p')}) != '' || self.pools.all("
            f"q, !({_EXCHANGES.format('q')}) || q.accelerator == p.accelerator))",
            "pools[].accelerator: unlike accelerators would exchange FP8 KV, and which attention backend they have in "
            "common is not known; set engine.attentionBackend to one that all of them have, or give a pool roles: "
            "[mixed], which exchanges no KV",
        ),
        rule(
            f"self.pools.all(p, !({_EXCHANGES.format('p')}) || self.pools.all(q, !({_EXCHANGES.format('q')})"
            " || p.parallelism.tensor <= q.parallelism.tensor || p.parallelism.tensor % q.parallelism.tensor == 0))",
            "pools[].parallelism.tensor: pools that exchange KV have tensor parallelism of which none divides the "
            "other, so vLLM cannot split the KV heads among their ranks; make one a multiple of the other",
        ),
        rule(
            "!has(self.engine.kvCache.offload) || self.pools.all(p, !has(p.gpu.perNode) ||"
            " p.parallelism.tensor * p.parallelism.pipeline * p.parallelism.data <= p.gpu.perNode)",
            "engine.kvCache.offload: a worker on several nodes would keep in the leader's host memory only the KV of "
            "the leader's own GPUs, and restore wrong KV; remove offload, or let each worker fit on one node",
        ),
        rule(
            "!has(self.engine.kvCache.offload) || self.pools.all(p, p.parallelism.data == 1)",
            "engine.kvCache.offload: each rank of a worker with parallelism.data would take all of hostMemory; remove "
            "offload, or use data 1",
        ),
        rule(
            "self.pools.all(p, p.workers.max == 0 || 'decode' in p.roles || 'mixed' in p.roles || self.pools.exists(q,"
            f" q.workers.max > 0 && 'decode' in q.roles && ({_IMAGE.format('p')}) == ({_IMAGE.format('q')})))"
            " && self.pools.all(p, p.workers.max == 0 || 'prefill' in p.roles || 'mixed' in p.roles ||"
            " self.pools.exists(q, q.workers.max > 0 && 'prefill' in q.roles &&"
            f" ({_IMAGE.format('p')}) == ({_IMAGE.format('q')})))",
            "pools[].engine.image: a pool of one role needs a pool of the other role with the same worker image, "
            "because engines of unlike versions do not exchange KV",
        ),
        rule(
            "!has(self.adapters) || !has(self.adapters.list) || !has(self.model.servedName)"
            " || self.adapters.list.all(a, a.name != self.model.servedName)",
            "adapters.list[].name: is model.servedName, the name of the model itself; choose another name",
        ),
        *BATCH_RULES,
        *POOLING_RULES,
    )


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """The part of an object's metadata that Fulcrum reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    deletion_timestamp: str | None = None


class InferenceCluster(ApiStruct, frozen=True, kw_only=True):
    """One model behind one endpoint, served by prefill and decode workers within a latency promise."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta
    spec: Annotated[InferenceClusterSpec, Meta(description="What is wanted.")]
    status: Annotated[
        InferenceClusterStatus, Meta(description="What is there; written by the operator, absent where not known.")
    ] = InferenceClusterStatus()

    rules: ClassVar[Rules] = (
        rule(
            "size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')"
            " && !self.metadata.name.matches('^[0-9]')",
            "metadata.name: use at most 40 lower-case letters, digits and dashes, a letter first; "
            "the names of Services and Pods are made from it",
        ),
        rule(
            "self.spec.pools.all(p, size(self.metadata.name) + size(p.name) <= 57)",
            "metadata.name: together with the name of a pool it is longer than 57 characters; "
            "a worker's Pod could not carry its name as a host name",
        ),
        rule(
            "self.spec.pools.all(p, !has(p.gpu.perNode) || size(self.metadata.name) + size(p.name) <= 40)",
            "metadata.name: together with the name of a pool with gpu.perNode it is longer than 40 characters; "
            "the Pods of a worker on several nodes have longer names",
        ),
        rule(
            "!has(self.spec.adapters) || !has(self.spec.adapters.list) || has(self.spec.model.servedName)"
            " || self.spec.adapters.list.all(a, a.name != self.metadata.name)",
            "spec.adapters.list[].name: is the name of the InferenceCluster, by which the model itself is served; "
            "choose another name, or set spec.model.servedName",
        ),
    )
