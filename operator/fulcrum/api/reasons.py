"""The one enum of reasons: plan actions, conditions, events, rejections and metric labels all use it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why something is as it is, or was done. CamelCase, as Kubernetes conditions want it."""

    # Conditions.
    READY = "Ready"
    GATEWAY_NOT_READY = "GatewayNotReady"
    GATEWAY_STARTING = "GatewayStarting"
    GATEWAY_ROLLOUT_FAILED = "GatewayRolloutFailed"
    NO_READY_WORKERS = "NoReadyWorkers"
    ROLE_EMPTY = "RoleEmpty"
    WORKERS_STARTING = "WorkersStarting"
    RECONCILED = "Reconciled"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    ENGINE_FAILED = "EngineFailed"
    ENGINE_STALLED = "EngineStalled"
    GPU_FAILED = "GpuFailed"
    KV_TRANSFER_FAILING = "KvTransferFailing"
    KV_TRANSFER_SLOW = "KvTransferSlow"
    KV_POOL_FAILING = "KvPoolFailing"
    KV_DTYPE_UNSUITED = "KvDtypeUnsuited"
    MODEL_CONFIG_UNUSABLE = "ModelConfigUnusable"
    PROFILE_UNUSABLE = "ProfileUnusable"
    PRELOADING = "Preloading"
    PRELOAD_FAILED = "PreloadFailed"
    WORKER_UNSCHEDULABLE = "WorkerUnschedulable"
    INVALID_SPEC = "InvalidSpec"
    TEMPLATE_REFUSED = "TemplateRefused"
    ENGINE_REFUSED = "EngineRefused"
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    GANG_SCHEDULER_MISSING = "GangSchedulerMissing"
    RECONCILE_FAILED = "ReconcileFailed"
    PLAN_FAILED = "PlanFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    NODE_LOST = "NodeLost"
    NAME_TAKEN = "NameTaken"
    ROLLOUT_HALTED = "RolloutHalted"
    REHEARSAL_OFF = "RehearsalOff"
    METRICS_UNKNOWN = "MetricsUnknown"
    OVER_CAPACITY = "OverCapacity"
    REQUESTS_REJECTED = "RequestsRejected"
    OBSERVING = "Observing"
    ASLEEP = "Asleep"
    WAKE_FAILED = "WakeFailed"
    WITHIN_BOUNDS = "WithinBounds"
    OUT_OF_BOUNDS = "OutOfBounds"
    CLUSTER_MISSING = "ClusterMissing"
    CLUSTER_NOT_READY = "ClusterNotReady"
    NOT_GRANTED = "NotGranted"
    KEYS_NOT_PASSED = "KeysNotPassed"
    ADAPTER_MISSING = "AdapterMissing"
    BATCH_NOT_READY = "BatchNotReady"

    # Actions and events.
    WORKER_CREATED = "WorkerCreated"
    WORKER_REPLACED = "WorkerReplaced"
    WORKER_DRAINING = "WorkerDraining"
    WORKER_DRAINED = "WorkerDrained"
    WORKER_REMOVED = "WorkerRemoved"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    ROLE_FLIPPED = "RoleFlipped"
    LOAD_FORECAST = "LoadForecast"
    LOAD_SHIFTED = "LoadShifted"
    LOAD_FELL = "LoadFell"
    WORKER_SLOW = "WorkerSlow"
    SCALE_REQUESTED = "ScaleRequested"
    FELL_ASLEEP = "FellAsleep"
    PLACEMENT_DRIFTED = "PlacementDrifted"
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"

    # Rejections at the gateway (x-fulcrum-rejected, metric label).
    NO_WORKER = "NoWorker"
    WAKING = "Waking"
    OVERLOADED = "Overloaded"
    TTFT_UNREACHABLE = "TtftUnreachable"
    TPOT_UNREACHABLE = "TpotUnreachable"
    KV_EXHAUSTED = "KvExhausted"
    QUEUE_FULL = "QueueFull"
    CLASS_SHARE = "ClassShare"
    PREEMPTED = "Preempted"
    NOTHING_IDLE = "NothingIdle"
    RATE_LIMITED = "RateLimited"
    NEVER_FITS = "NeverFits"
    UPSTREAM_FAILED = "UpstreamFailed"
    ENGINE_ERROR = "EngineError"
    TIMED_OUT = "TimedOut"
    SHUTTING_DOWN = "ShuttingDown"


REJECTIONS: Final = (
    Reason.NO_WORKER,
    Reason.WAKING,
    Reason.OVERLOADED,
    Reason.TTFT_UNREACHABLE,
    Reason.TPOT_UNREACHABLE,
    Reason.KV_EXHAUSTED,
    Reason.QUEUE_FULL,
    Reason.CLASS_SHARE,
    Reason.PREEMPTED,
    Reason.NEVER_FITS,
)
"""Why a gateway turned a request away without any work; its other reasons are failures after work was done.

`NOTHING_IDLE` is not among them: a batch request that is to come back later is no load that could not be served.
"""
