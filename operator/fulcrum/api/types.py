"""InferenceCluster (`fulcrum.dev/v1alpha1`) as typed, frozen values.

One source for the whole API: the CRD in `crds/` is generated from these types (descriptions, defaults, bounds and CEL
rules included), and the controller reads objects through them. Field names are camelCase on the wire.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False):
    """Base of everything below `spec`: unknown fields are pruned by the API server, and ignored here."""


Name = Annotated[
    str, Meta(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="DNS label.")
]
Duration = Annotated[str, Meta(max_length=32, pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$")]
"""As Kubernetes writes it: `500ms`, `1m30s`. Read with `api.durations.seconds`."""
Quantity = Annotated[str, Meta(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
"""As Kubernetes writes it: `64Gi`. Read with `api.quantities.number_of_bytes`."""


class Credentials(_Spec, frozen=True, kw_only=True):
    secret_name: Annotated[str, Meta(min_length=1, max_length=253, description="Secret with the key `token`.")]


class ModelCache(_Spec, frozen=True, kw_only=True):
    persistent_volume_claim: Annotated[
        str,
        Meta(min_length=1, max_length=253, description="Claim that holds downloaded weights; mounted in every worker."),
    ]


class Model(_Spec, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=512, description="Hub id, or a path inside the worker.")]
    served_name: Annotated[
        str | None, Meta(description="Name that clients send as `model`; default: the name of the InferenceCluster.")
    ] = None
    max_model_len: Annotated[
        int | None, Meta(description="Longest prompt plus output, in tokens; default: what the model allows.")
    ] = None
    credentials: Annotated[Credentials | None, Meta(description="Access to a gated or private model.")] = None
    cache: Annotated[ModelCache | None, Meta(description="Where weights are kept between starts.")] = None


class Slo(_Spec, frozen=True, kw_only=True):
    ttft: Annotated[Duration, Meta(description="Time to first token that a request must stay within.")] = "2s"
    tpot: Annotated[Duration, Meta(description="Time per output token that a request must stay within.")] = "100ms"
    attainment: Annotated[
        float, Meta(gt=0, le=1, description="Share of requests that must stay within both, 0 to 1.")
    ] = 0.95


class Parallelism(_Spec, frozen=True, kw_only=True):
    tensor: Annotated[int, Meta(ge=1, le=64, description="Tensor parallel size (GPUs in one stage).")] = 1
    pipeline: Annotated[int, Meta(ge=1, le=64, description="Pipeline parallel size (stages).")] = 1


class WorkerCount(_Spec, frozen=True, kw_only=True):
    min: Annotated[int, Meta(ge=0, le=4096, description="Never fewer workers than this.")] = 0
    max: Annotated[int, Meta(ge=0, le=4096, description="Never more workers than this.")]


class PoolAdmits(_Spec, frozen=True, kw_only=True):
    min_prompt_tokens: Annotated[int | None, Meta(description="Shortest prompt that is sent here, in tokens.")] = None
    max_prompt_tokens: Annotated[int | None, Meta(description="Longest prompt that is sent here, in tokens.")] = None
    classes: Annotated[
        tuple[Name, ...], Meta(max_length=32, description="QoS classes that may be sent here; empty: every class.")
    ] = ()


class Pool(_Spec, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="Name of the pool, unique in the cluster.")]
    accelerator: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=63,
            description="Accelerator of the pool's workers, such as H100-SXM-80GB; `cpu` runs the engine on CPUs.",
        ),
    ]
    parallelism: Annotated[Parallelism, Meta(description="How one worker spreads over GPUs.")] = Parallelism()
    workers: Annotated[WorkerCount, Meta(description="Bounds on the number of workers.")]
    roles: Annotated[
        tuple[Role, ...],
        Meta(
            min_length=1,
            max_length=3,
            description="Roles that workers of the pool may take; more than one makes them flippable.",
        ),
    ] = (Role.PREFILL, Role.DECODE)
    template: Annotated[
        dict[str, Any],
        Meta(description="Pod template merged over the generated worker Pod (tolerations, resources, volumes ...)."),
    ] = {}
    admits: Annotated[PoolAdmits | None, Meta(description="Which requests may be sent to the pool.")] = None


class KvOffload(_Spec, frozen=True, kw_only=True):
    host_memory: Annotated[Quantity, Meta(description="Host memory per worker for KV that left the accelerator.")]
    policy: Annotated[str, Meta(description="How KV comes back.")] = "partialRecompute"


class KvCacheDtype(StrEnum):
    FP8 = "fp8"
    BF16 = "bf16"
    AUTO = "auto"


class KvCache(_Spec, frozen=True, kw_only=True):
    dtype: Annotated[KvCacheDtype, Meta(description="Element type of the KV cache.")] = KvCacheDtype.FP8
    block_size: Annotated[int, Meta(ge=1, le=256, description="Tokens in one KV block.")] = 16
    memory: Annotated[
        Quantity | None, Meta(description="KV cache per worker; default: what the accelerator has left (cpu: 1Gi).")
    ] = None
    offload: Annotated[KvOffload | None, Meta(description="KV offload to host memory.")] = None


class LoadFailurePolicy(StrEnum):
    RECOMPUTE = "recompute"
    FAIL = "fail"


class Transfer(_Spec, frozen=True, kw_only=True):
    connector: Annotated[str, Meta(description="KV connector.")] = "nixl"
    backends: Annotated[tuple[str, ...], Meta(max_length=8, description="NIXL backends, in order.")] = ("UCX",)
    load_failure_policy: Annotated[
        LoadFailurePolicy, Meta(description="What a decode worker does when the KV did not arrive.")
    ] = LoadFailurePolicy.RECOMPUTE


class Engine(_Spec, frozen=True, kw_only=True):
    image: Annotated[str, Meta(min_length=1, max_length=512, description="Worker image.")] = (
        "ghcr.io/fulcrum/worker:0.1.0"
    )
    kv_cache: Annotated[KvCache, Meta(description="KV cache of each engine.")] = KvCache()
    transfer: Annotated[Transfer, Meta(description="How KV moves from prefill to decode.")] = Transfer()
    args: Annotated[
        tuple[str, ...], Meta(max_length=64, description="Extra vLLM arguments, checked against a deny-list.")
    ] = ()


class BalanceMode(StrEnum):
    AUTO = "Auto"
    MANUAL = "Manual"
    OBSERVE = "Observe"


class Ratio(_Spec, frozen=True, kw_only=True):
    prefill: Annotated[int, Meta(ge=0, le=4096, description="Prefill workers.")]
    decode: Annotated[int, Meta(ge=0, le=4096, description="Decode workers.")]


class ForecastMethod(StrEnum):
    AUTO = "auto"
    LAST_VALUE = "lastValue"
    SEASONAL_NAIVE = "seasonalNaive"
    HOLT_WINTERS = "holtWinters"
    ARIMA = "arima"


class Forecast(_Spec, frozen=True, kw_only=True):
    method: Annotated[ForecastMethod, Meta(description="Forecast method; auto back-tests all of them.")] = (
        ForecastMethod.AUTO
    )
    interval: Annotated[Duration, Meta(description="Length of one sample of the load history.")] = "60s"
    horizon: Annotated[str, Meta(description="How far ahead; auto: the measured time from Pod to readiness.")] = "auto"
    seasonality: Annotated[Duration, Meta(description="Length of one season.")] = "24h"
    quantile: Annotated[float, Meta(gt=0, lt=1, description="Quantile of the forecast that is planned for.")] = 0.9


class FlipStyle(StrEnum):
    IMMEDIATE = "Immediate"
    DRAIN = "Drain"


class Flip(_Spec, frozen=True, kw_only=True):
    style: Annotated[FlipStyle, Meta(description="Immediate: new role at once; Drain: finish the old work first.")] = (
        FlipStyle.IMMEDIATE
    )
    min_dwell: Annotated[Duration, Meta(description="Shortest time between two automatic flips of one worker.")] = "30s"
    drain_timeout: Annotated[Duration, Meta(description="Longest wait for a draining worker.")] = "120s"


class ScaleDown(_Spec, frozen=True, kw_only=True):
    stabilization: Annotated[Duration, Meta(description="How long demand must stay low before workers go.")] = "300s"


class Balance(_Spec, frozen=True, kw_only=True):
    mode: Annotated[
        BalanceMode, Meta(description="Auto, Manual (ratio below) or Observe (plan, publish, do nothing).")
    ] = BalanceMode.MANUAL
    ratio: Annotated[Ratio | None, Meta(description="Workers per role in Manual; default: an even split.")] = None
    forecast: Annotated[Forecast, Meta(description="Load forecast.")] = Forecast()
    flip: Annotated[Flip, Meta(description="How workers change role.")] = Flip()
    scale_down: Annotated[ScaleDown, Meta(description="How capacity is given back.")] = ScaleDown()


class AdmissionPolicy(StrEnum):
    PREDICTIVE = "Predictive"
    THRESHOLD = "Threshold"
    OFF = "Off"


class ClassMatch(_Spec, frozen=True, kw_only=True):
    header: Annotated[str, Meta(min_length=1, max_length=128, description="Request header that names the class.")]
    value: Annotated[str, Meta(min_length=1, max_length=256, description="Value that selects the class.")]


class QosClass(_Spec, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="Name of the class, unique in the cluster.")]
    priority: Annotated[int, Meta(ge=0, le=1000, description="Higher is served first.")]
    reserved: Annotated[float, Meta(ge=0, le=1, description="Share of capacity kept for the class, 0 to 1.")] = 0.0
    match: Annotated[ClassMatch | None, Meta(description="Which requests are of the class; absent: the rest.")] = None


class Admission(_Spec, frozen=True, kw_only=True):
    policy: Annotated[AdmissionPolicy, Meta(description="How a request is turned away early.")] = AdmissionPolicy.OFF
    classes: Annotated[tuple[QosClass, ...], Meta(max_length=32, description="QoS classes.")] = ()


class GatewayAuth(_Spec, frozen=True, kw_only=True):
    secret_name: Annotated[str, Meta(min_length=1, max_length=253, description="Secret with the API keys.")]


class Gateway(_Spec, frozen=True, kw_only=True):
    replicas: Annotated[int, Meta(ge=1, le=100, description="Gateway replicas.")] = 2
    image: Annotated[str, Meta(min_length=1, max_length=512, description="Gateway image.")] = (
        "ghcr.io/fulcrum/fulcrum:0.1.0"
    )
    auth: Annotated[GatewayAuth | None, Meta(description="API keys; absent: no authentication.")] = None


class Prometheus(_Spec, frozen=True, kw_only=True):
    url: Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"^https?://", description="Prometheus URL.")]


class Metrics(_Spec, frozen=True, kw_only=True):
    prometheus: Annotated[
        Prometheus | None, Meta(description="Prometheus to query; absent: the gateways are scraped directly.")
    ] = None


class InferenceClusterSpec(_Spec, frozen=True, kw_only=True):
    model: Annotated[Model, Meta(description="The model that is served.")]
    slo: Annotated[Slo, Meta(description="The latency that is promised.")] = Slo()
    pools: Annotated[tuple[Pool, ...], Meta(min_length=1, max_length=16, description="Workers, by hardware.")]
    engine: Annotated[Engine, Meta(description="The inference engine.")] = Engine()
    balance: Annotated[Balance, Meta(description="How roles and worker counts are decided.")] = Balance()
    admission: Annotated[Admission, Meta(description="Early rejection and QoS classes.")] = Admission()
    gateway: Annotated[Gateway, Meta(description="The OpenAI-compatible endpoint.")] = Gateway()
    metrics: Annotated[Metrics, Meta(description="Where load history comes from.")] = Metrics()


class ConditionType(StrEnum):
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_Spec, frozen=True, kw_only=True):
    """A standard `metav1.Condition`."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int
    last_transition_time: str


class RoleCounts(_Spec, frozen=True, kw_only=True):
    desired: int
    ready: int
    draining: int


class Decision(_Spec, frozen=True, kw_only=True):
    action: str
    reason: Reason
    from_: Annotated[str, Meta(description="State before.")] = msgspec.field(name="from")
    to: str
    time: str


class InferenceClusterStatus(_Spec, frozen=True, kw_only=True):
    """What someone on call needs. Fields that are not known are absent."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()
    endpoint: str | None = None
    ratio: str | None = None
    ready: Annotated[str | None, Meta(description="Ready workers of desired ones, as `3/4`.")] = None
    roles: dict[Role, RoleCounts] = {}
    last_decision: Decision | None = None


class ObjectMeta(_Spec, frozen=True, kw_only=True):
    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class InferenceCluster(_Spec, frozen=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: InferenceClusterSpec
    status: InferenceClusterStatus = InferenceClusterStatus()
