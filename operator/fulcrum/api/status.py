"""Status of an InferenceCluster: what an operator on call needs. What is not known is absent, never zero."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fulcrum.api.adapter_types import MAX_ADAPTERS, AdapterStatus
from fulcrum.api.balance_types import IdleDepth
from fulcrum.api.base import ApiStruct, Duration
from fulcrum.api.names import Role
from fulcrum.api.parallelism import gpus_of
from fulcrum.api.reasons import Reason

# An enum in the schema would make an old CRD refuse the status that a newer operator writes.
ReasonWord = Annotated[
    Reason,
    Meta(
        description="One word for programs, from Fulcrum's list of reasons.",
        extra_json_schema={
            "enum": None,
            "minLength": 1,
            "maxLength": 64,
            "pattern": "^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$",
        },
    ),
]
MAX_ROUTES: Final = 64
"""Bound of `status.routes`."""
MAX_SLOW_WORKERS: Final = 16
"""Bound of `status.slowWorkers`: the slowest."""
MAX_FAILED_GPUS: Final = 16
"""Bound of `status.failedGpus`, and so of the nodes that a new worker avoids. Beyond it a cause that all nodes share is
likelier than broken GPUs."""
Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]
Message = Annotated[str, Meta(max_length=32768)]
_Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
_Rate = Annotated[float, Meta(ge=0)]


def timestamp(moment: datetime) -> str:
    """Return `moment` as Kubernetes writes times, whole seconds in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ConditionType(StrEnum):
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiStruct, frozen=True, kw_only=True):
    """A standard `metav1.Condition`."""

    type: Annotated[
        ConditionType,
        Meta(
            description="Available: requests are served. Progressing: on the way to the spec. "
            "Degraded: something is wrong."
        ),
    ]
    status: Annotated[ConditionStatus, Meta(description="True, False or Unknown.")]
    reason: ReasonWord
    message: Annotated[Message, Meta(description="Why, for people.")]
    observed_generation: Annotated[Count, Meta(description="Generation of the spec that the condition is about.")]
    last_transition_time: Annotated[Time, Meta(description="When `status` last changed.")]


class RoleCounts(ApiStruct, frozen=True, kw_only=True):
    """Workers of one role."""

    desired: Annotated[Count, Meta(description="Workers that the role should have.")]
    ready: Annotated[Count, Meta(description="Workers of the role that serve.")]
    draining: Annotated[Count, Meta(description="Workers that finish their last work in the role.")]


class LatencyQuantiles(ApiStruct, frozen=True, kw_only=True):
    """Measured latency over the last minutes, as durations (see `api.durations.text_of`)."""

    p50: Annotated[Duration | None, Meta(description="Half of the requests were faster.")] = None
    p90: Annotated[Duration | None, Meta(description="Nine of ten requests were faster.")] = None
    p99: Annotated[Duration | None, Meta(description="99 of 100 requests were faster.")] = None


class ForecastStatus(ApiStruct, frozen=True, kw_only=True):
    """The load that is planned for."""

    method: Annotated[str, Meta(max_length=64, description="Forecast method in use.")]
    rate: Annotated[float, Meta(ge=0, description="Expected requests per second.")]
    upper_rate: Annotated[
        float | None, Meta(description="Requests per second that the plan is made for (the chosen quantile).")
    ] = None
    input_tokens: Annotated[float | None, Meta(description="Expected prompt tokens per request.")] = None
    output_tokens: Annotated[float | None, Meta(description="Expected output tokens per request.")] = None
    error: Annotated[
        float | None, Meta(description="Recent error of the forecast, as a share of the load (weighted MAPE).")
    ] = None
    error_against_last_value: Annotated[
        float | None, Meta(description="The same error as a share of last value's; below 1 is better than last value.")
    ] = None
    horizon: Annotated[Duration | None, Meta(description="How far ahead the plan looks.")] = None


class KvTierStatus(ApiStruct, frozen=True, kw_only=True):
    """Where the KV of cached prompts is, and whence it comes back. Counted since the start of each engine."""

    host_usage: Annotated[_Share | None, Meta(description="Share of the workers' host memory that holds KV.")] = None
    shared_usage: Annotated[
        _Share | None,
        Meta(description="Share of `offload.pool.size` in use, by all workers of the cluster that share it."),
    ] = None
    device_hits: Annotated[
        _Share | None, Meta(description="Share of the prompt tokens whose KV was on the accelerator.")
    ] = None
    host_hits: Annotated[
        _Share | None, Meta(description="Share of the prompt tokens whose KV came from host memory.")
    ] = None
    shared_hits: Annotated[
        _Share | None, Meta(description="Share of the prompt tokens whose KV came from `offload.pool`.")
    ] = None
    host_bytes_per_second: Annotated[
        _Rate | None, Meta(description="Rate at which a worker loads KV from host memory, while it does.")
    ] = None
    shared_bytes_per_second: Annotated[
        _Rate | None, Meta(description="Rate at which a worker reads KV from `offload.pool`, while it does.")
    ] = None


class KvCacheStatus(ApiStruct, frozen=True, kw_only=True):
    """The KV cache of new workers."""

    dtype: Annotated[
        str, Meta(max_length=32, description="Element type that engines are told; auto: vLLM's own choice.")
    ]
    reason: Annotated[str, Meta(max_length=1024, description="Why it is that.")]


class PreloadState(StrEnum):
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


class PreloadStatus(ApiStruct, frozen=True, kw_only=True):
    """The download of the weights ahead of workers."""

    job: Annotated[str, Meta(max_length=63, description="Name of the Job.")]
    state: Annotated[str, Meta(max_length=32, description="Running, Complete or Failed.")]
    message: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, Meta(description="Why it failed and what to do; else absent.")
    ] = None


class BatchesStatus(ApiStruct, frozen=True, kw_only=True):
    """Batches of OpenAI's API, read every 30 seconds."""

    waiting: Annotated[Count, Meta(description="Batches that have not begun.")]
    running: Annotated[Count, Meta(description="Batches under way.")]
    requests: Annotated[Count, Meta(description="Requests of the batches under way.")]
    completed: Annotated[Count, Meta(description="How many of these requests were answered.")]
    failed: Annotated[Count, Meta(description="How many of these requests failed.")]


class DecidedLoad(ApiStruct, frozen=True, kw_only=True):
    """The load that a decision was made for, with its bounds."""

    rate: Annotated[float, Meta(ge=0, description="Requests per second that were measured.")]
    lower_rate: Annotated[float, Meta(ge=0, description="Requests per second that arrive at least.")]
    upper_rate: Annotated[float, Meta(ge=0, description="Requests per second that arrive at most.")]
    forecast_rate: Annotated[
        float | None, Meta(description="Requests per second within the horizon, at the forecast's quantile.")
    ] = None
    input_tokens: Annotated[float, Meta(ge=0, description="Mean prompt tokens.")]
    output_tokens: Annotated[float, Meta(ge=0, description="Mean output tokens.")]


class Candidate(ApiStruct, frozen=True, kw_only=True):
    """A layout of workers that was considered."""

    layout: Annotated[str, Meta(max_length=256, description="Workers per role, as `3P:5D`.")]
    attainment: Annotated[
        _Share,
        Meta(
            description="Share of requests that it serves inside the SLO: as they were played, else what its workers "
            "carry of the expected load with usual room for waiting."
        ),
    ]
    lowest: Annotated[_Share | None, Meta(description="The same for the least favourable load within the bounds.")] = (
        None
    )
    verdict: Annotated[str, Meta(max_length=256, description="Why it was chosen, or was not.")]


class Explanation(ApiStruct, frozen=True, kw_only=True):
    """What a decision rests on. It is written with the decision and not again."""

    load: DecidedLoad
    attainment: Annotated[
        _Share | None, Meta(description="Share of admitted requests inside the SLO, as measured.")
    ] = None
    candidates: Annotated[
        tuple[Candidate, ...],
        Meta(
            max_length=8,
            description="Layouts that were compared.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    changes: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        Meta(
            max_length=4,
            description="What would change the decision.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()


class Decision(ApiStruct, frozen=True, kw_only=True):
    """The last decision that changed something."""

    action: Annotated[str, Meta(max_length=256, description="What was done.")]
    reason: ReasonWord
    from_: Annotated[str, Meta(max_length=256, description="State before.")] = msgspec.field(name="from")
    to: Annotated[str, Meta(max_length=256, description="State after.")]
    time: Annotated[Time, Meta(description="When.")]
    explanation: Annotated[
        Explanation | None, Meta(description="What it rests on; absent where the load was not the reason.")
    ] = None


class KvRoute(ApiStruct, frozen=True, kw_only=True):
    """Where a part of what a pool prefills is decoded."""

    prefill: Annotated[str, Meta(max_length=63, description="Pool that prefills.")]
    decode: Annotated[str, Meta(max_length=63, description="Pool that decodes.")]
    share: Annotated[_Share, Meta(description="Share of what the first prefills that goes to the second, 0 to 1.")]


class RehearsalStatus(ApiStruct, frozen=True, kw_only=True):
    """The last rehearsal: the last minutes of requests, played under the layout that stood and under others."""

    time: Annotated[Time, Meta(description="When it was asked for.")]
    stood: Annotated[str, Meta(max_length=256, description="Workers per role that stood, as `3P:5D`.")]
    stood_attainment: Annotated[_Share, Meta(description="Share of the requests that they serve inside the SLO.")]
    best: Annotated[str, Meta(max_length=256, description="The layout that serves most.")]
    best_attainment: Annotated[_Share, Meta(description="Share of the requests that it serves inside the SLO.")]
    chosen: Annotated[
        str, Meta(max_length=256, description="The best one where it is ahead beyond chance, else what stood.")
    ]
    requests: Annotated[Count, Meta(description="Requests that were counted, the same for each layout.")]
    gain: Annotated[float, Meta(description="Requests by which the best one is ahead.")]
    error: Annotated[float | None, Meta(description="Standard error of the gain; absent where nothing was ahead.")] = (
        None
    )
    off: Annotated[
        float | None,
        Meta(
            description="By which share what stood served more of the last requests (below 0: less) than a play of "
            "them says; shares and gain include it. Absent where that may be chance."
        ),
    ] = None
    foretold_attainment: Annotated[
        _Share | None, Meta(description="What an earlier rehearsal foretold of requests that have come since.")
    ] = None
    served_attainment: Annotated[
        _Share | None, Meta(description="Share of these requests that was then served inside the SLO.")
    ] = None


class RecommendedPool(ApiStruct, frozen=True, kw_only=True):
    """Alike workers of a recommended placement."""

    accelerator: Annotated[str, Meta(max_length=63, description="Accelerator of its workers.")]
    tensor: Annotated[Count, Meta(description="Tensor parallel size of a worker.")]
    pipeline: Annotated[Count, Meta(description="Pipeline parallel size of a worker.")]
    data: Annotated[Count, Meta(description="Data parallel size of a worker.")] = 1
    role: Annotated[Role, Meta(description="Role of its workers.")]
    workers: Annotated[Count, Meta(description="Number of workers.")]

    @property
    def gpus(self) -> int:
        """GPUs of one worker."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)


class Recommendation(ApiStruct, frozen=True, kw_only=True):
    """Other pools on the same GPUs that would carry more. The operator never makes them by itself."""

    gain: Annotated[float, Meta(ge=0, description="Share by which they would carry more; 0.3 is 30 percent.")]
    goodput: Annotated[float, Meta(ge=0, description="Requests per second within spec.slo that they would carry.")]
    current_goodput: Annotated[
        float, Meta(ge=0, description="Requests per second that the pools of the spec carry at most.")
    ]
    input_tokens: Annotated[float, Meta(ge=0, description="Mean prompt tokens of the load that it is made for.")]
    output_tokens: Annotated[float, Meta(ge=0, description="Mean output tokens of the load that it is made for.")]
    pools: Annotated[
        tuple[RecommendedPool, ...],
        Meta(
            max_length=32,
            description="What to make of the GPUs.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ]
    generation: Annotated[Count, Meta(description="Generation of the spec that it was compared with.")]
    since: Annotated[Time, Meta(description="When it was first made.")]


class FailedGpu(ApiStruct, frozen=True, kw_only=True):
    """A GPU that failed under a worker. New workers rather go to other nodes for 6 hours."""

    node: Annotated[str, Meta(max_length=253, description="Node that it is in.")]
    gpu: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="UUID, PCI address or rank in the worker; absent where the engine did not say."),
    ] = None
    fault: Annotated[str, Meta(max_length=128, description="What failed.")]
    worker: Annotated[str, Meta(max_length=253, description="Pod of the worker that it failed under.")]
    time: Annotated[Time, Meta(description="When.")]


class SlowWorker(ApiStruct, frozen=True, kw_only=True):
    """A worker that is slower than the others of its pool, on the same GPUs."""

    worker: Annotated[str, Meta(max_length=253, description="Its Pod.")]
    node: Annotated[str, Meta(max_length=253, description="Node that it is on.")]
    pool: Annotated[str, Meta(max_length=63, description="Its pool.")]
    factor: Annotated[
        float, Meta(ge=0, description="Times as long as the median of the others that it takes for the same work.")
    ]
    since: Annotated[Time, Meta(description="When that was first seen.")]


class SleepState(StrEnum):
    AWAKE = "Awake"
    FALLING_ASLEEP = "FallingAsleep"
    ASLEEP = "Asleep"
    WAKING = "Waking"


class SleepStatus(ApiStruct, frozen=True, kw_only=True):
    """Whether workers run, with balance.idleAfter."""

    state: Annotated[
        str,
        Meta(
            max_length=32,
            description="Awake: workers serve. FallingAsleep: the last ones drain. Asleep: none serves. Waking: some "
            "start.",
        ),
    ]
    since: Annotated[Time, Meta(description="When the state began.")]
    held: Annotated[Count, Meta(description="Requests that wait at the gateways now.")] = 0
    first_token_seconds: Annotated[
        _Rate | None,
        Meta(description="Longest time from arrival to first token of the requests that the last wake held."),
    ] = None
    depth: Annotated[
        IdleDepth | None,
        Meta(description="What sleeps, or slept last: Pods (no worker is left) or Engines; absent before."),
    ] = None
    first_token_by_depth: Annotated[
        Annotated[dict[IdleDepth, _Rate], Meta(max_length=2)] | None,
        Meta(description="firstTokenSeconds of the last wake from each depth that held a request; absent before."),
    ] = None
    load_expected: Annotated[
        Time | None, Meta(description="When load is expected next, from earlier days; absent while none is.")
    ] = None

    @property
    def down(self) -> bool:
        """No worker is to run."""
        return self.state in (SleepState.ASLEEP, SleepState.FALLING_ASLEEP)


class InferenceClusterStatus(ApiStruct, frozen=True, kw_only=True):
    """What someone on call needs. Fields that are not known are absent."""

    observed_generation: Annotated[int | None, Meta(description="Generation of the spec that was last acted on.")] = (
        None
    )
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            max_length=16,
            description="Available, Progressing and Degraded.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    endpoint: Annotated[
        str | None, Meta(description="URL of the OpenAI-compatible endpoint inside the Kubernetes cluster.")
    ] = None
    ratio: Annotated[str | None, Meta(description="Prefill to decode workers that serve, as `3P:5D`.")] = None
    ready: Annotated[str | None, Meta(description="Ready workers of desired ones, as `3/4`.")] = None
    roles: Annotated[
        dict[Role, RoleCounts],
        Meta(max_length=8, description="Desired, ready and draining workers of each role."),
    ] = msgspec.field(default_factory=dict)
    layout: Annotated[
        Annotated[dict[str, Annotated[dict[Role, Count], Meta(max_length=8)]], Meta(max_length=16)] | None,
        Meta(description="Workers that the last decision wanted, by pool and role; absent where it wanted none."),
    ] = None
    attainment: Annotated[
        _Share | None, Meta(description="Share of recent requests inside their SLO, 0 to 1; absent until known.")
    ] = None
    ttft: Annotated[LatencyQuantiles | None, Meta(description="Time to first token; absent until known.")] = None
    tpot: Annotated[LatencyQuantiles | None, Meta(description="Time per output token; absent until known.")] = None
    rejected_ratio: Annotated[
        _Share | None, Meta(description="Share of recent requests that were turned away, 0 to 1; absent until known.")
    ] = None
    queued: Annotated[
        float | None,
        Meta(
            description="Requests that waited in the gateways' admission queues of late, on average; absent without "
            "admission.queue, and until known.",
        ),
    ] = None
    forecast: Annotated[
        ForecastStatus | None, Meta(description="The load that is planned for; absent until known.")
    ] = None
    kv_cache: Annotated[
        KvCacheStatus | None, Meta(description="What engine.kvCache.dtype came to; the same in all pools.")
    ] = None
    start_timeout: Annotated[
        str | None, Meta(description="What engine.startTimeout came to, for workers that start now.")
    ] = None
    kv_tiers: Annotated[
        Annotated[dict[str, KvTierStatus], Meta(max_length=16)] | None,
        Meta(description="Host memory and KV pool, by pool of workers; absent without them."),
    ] = None
    adapters: Annotated[
        Annotated[tuple[AdapterStatus, ...], Meta(max_length=MAX_ADAPTERS)] | None,
        Meta(
            description="Each adapter of spec.adapters.list on the workers; absent without any.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    batches: Annotated[
        BatchesStatus | None,
        Meta(description="Batches of spec.batch; absent without it, and while its Pod is not ready."),
    ] = None
    preload: Annotated[
        PreloadStatus | None, Meta(description="What came of model.cache.preload; absent without it.")
    ] = None
    last_decision: Annotated[Decision | None, Meta(description="The last decision that changed something.")] = None
    routes: Annotated[
        Annotated[tuple[KvRoute, ...], Meta(max_length=MAX_ROUTES)] | None,
        Meta(
            description="Weights by which gateways choose among unlike decode pools; absent where there is one kind.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = None
    failed_gpus: Annotated[
        Annotated[tuple[FailedGpu, ...], Meta(max_length=MAX_FAILED_GPUS)] | None,
        Meta(
            description="GPUs that failed in the last 6 hours, whose nodes new workers avoid; absent without any.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = None
    slow_workers: Annotated[
        Annotated[tuple[SlowWorker, ...], Meta(max_length=MAX_SLOW_WORKERS)] | None,
        Meta(
            description="Workers on GPUs that are at least 1.3 times slower than their pool; absent without any.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = None
    sleep: Annotated[SleepStatus | None, Meta(description="Whether workers run; absent without balance.idleAfter.")] = (
        None
    )
    rehearsal: Annotated[
        RehearsalStatus | None,
        Meta(description="The last rehearsal; absent before the first, and with balance.rehearse Off."),
    ] = None
    recommendation: Annotated[
        Recommendation | None,
        Meta(
            description="Other pools that would carry more of the present load on the same GPUs; absent while there "
            "are none that are better by balance.recommend.threshold."
        ),
    ] = None

    @property
    def fault(self) -> Condition | None:
        """The condition Degraded while it is true."""
        degraded = next((c for c in self.conditions if c.type is ConditionType.DEGRADED), None)
        return degraded if degraded is not None and degraded.status is ConditionStatus.TRUE else None
