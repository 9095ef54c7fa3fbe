"""What one reconcile saw: frozen values, gathered by `controller.observe` and read by `plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from fulcrum.api.attention import AttentionKind
from fulcrum.api.device_fault import DeviceFault, heard
from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.names import Role
from fulcrum.api.ports import USUAL_PORTS, AgentAddress, Ports
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus, PreloadStatus
from fulcrum.api.worker import (
    EXIT_BAD_CONFIG,
    EXIT_DEVICE_FAILED,
    EXIT_ENGINE_DIED,
    EXIT_ENGINE_NOT_STARTED,
    EXIT_ENGINE_STALLED,
    LoadReport,
)
from fulcrum.capacity.kv_dtype import KvDtype
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.tuning import TUNING

EXIT_MEANINGS: Final = {
    EXIT_BAD_CONFIG: "its configuration cannot be used",
    EXIT_ENGINE_NOT_STARTED: "vLLM did not come up",
    EXIT_ENGINE_DIED: "vLLM died while serving",
    EXIT_ENGINE_STALLED: "vLLM had work and made no progress, so the agent restarted it",
    EXIT_DEVICE_FAILED: "a GPU failed",
}
_SERVES: dict[Role, frozenset[Role]] = {
    Role.PREFILL: frozenset({Role.PREFILL}),
    Role.DECODE: frozenset({Role.DECODE}),
    Role.MIXED: frozenset({Role.PREFILL, Role.DECODE}),
    Role.DRAINING: frozenset(),
}


def roles_served(role: Role) -> frozenset[Role]:
    """Return the kinds of work that a worker of `role` is routed to: prefill, decode, both or nothing."""
    return _SERVES[role]


class WorkerPhase(StrEnum):
    """`status.phase` of a Pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


_TIMES = ("role_since", "created", "ready_since", "unready_since", "draining_since")
_OVER = frozenset({WorkerPhase.FAILED, WorkerPhase.SUCCEEDED})
_DRAINING = Role.DRAINING
"""A name of its own: looking up an enum's member would be most of the time spent on each of thousands of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """The last end of a worker's container."""

    exit_code: int
    message: str = ""
    at: datetime | None = None
    """None: it was not written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWorker:
    """One worker Pod."""

    name: str
    uid: str
    pool: str
    ordinal: int
    role: Role
    role_epoch: int
    spec_hash: str
    phase: WorkerPhase
    ready: bool
    deleting: bool
    """Going away: it has a deletion timestamp, or its owner is gone. It still counts against every budget."""
    started: bool = False
    """Its container has been up since it last began; `ready` says whether it also is now."""
    pod_ip: str | None = None
    ports: Ports | None = USUAL_PORTS
    """None: its Pod says none that could be, so its agent cannot be asked."""
    host_network: bool = False
    """It uses its node's network: no NetworkPolicy holds for it."""
    restarts: int = 0
    waiting_reason: str | None = None
    """Why the container waits, such as CrashLoopBackOff."""
    waiting_message: str = ""
    """What the kubelet says about it."""
    termination: Termination | None = None
    unschedulable: str | None = None
    """The scheduler's message while no node fits; None when there is none."""
    role_since: datetime | None = None
    """When the worker was last given another role; None when it never was, or it was not written down."""
    created: datetime | None = None
    unready_since: datetime | None = None
    """When it was last seen to be not ready; None while it is, or it was not written down."""
    ready_since: datetime | None = None
    """When it last became ready; None while it is not."""
    draining_since: datetime | None = None
    draining_from: Role | None = None
    """The role that a draining worker had."""
    restart_asked: bool = False
    """It drains to be made anew, although its place and its revision stand."""
    load: LoadReport | None = None
    """None is unknown, and unknown is never idle."""
    node: str | None = None
    """The node that it runs on; None until one was found."""
    lost: bool = False
    """Its node is gone and will not report its end; it counts as `deleting`, too."""
    replaces: str | None = None
    """Uid of the worker whose place it takes once it is ready: it was created beyond the wanted number."""
    release_image: str | None = None
    """Its image, if the spec named none when it was made: such workers share a revision with those of release 0.1.0."""
    kv_dtype: KvCacheDtype = KvCacheDtype.AUTO
    """What `kvCache.dtype: auto` came to when it was made."""
    attention: AttentionKind | None = None
    """The kind of attention that it was made for; None: what the model's name says."""
    exchanges_no_kv: bool = False
    """It was made without KV transfer, and can be nothing but mixed."""
    stale: bool = False
    """Made from another spec, and may be made anew; see `rollout.as_seen`."""
    role_acknowledged: bool = False
    """The agent is known to know the role (only an optimisation: telling it twice does no harm)."""

    @property
    def agent(self) -> AgentAddress | None:
        """Where its agent answers; None while that is unknown."""
        return AgentAddress(self.pod_ip, self.ports.agent) if self.pod_ip and self.ports is not None else None

    @property
    def serving(self) -> bool:
        """Requests can arrive: gateways choose this worker for its role."""
        return self.ready and not self.deleting and self.role is not _DRAINING

    @property
    def pausing(self) -> bool:
        """Not ready, though its engine is up: a busy node answers late, and its requests may go on."""
        engine_is_up = self.started and (self.load is None or not self.load.starting)
        return engine_is_up and not self.ready and self.live and self.role is not _DRAINING

    @property
    def live(self) -> bool:
        """Serves, or may yet serve."""
        return not self.deleting and self.phase not in _OVER

    @property
    def ended(self) -> bool:
        """The Pod is over (evicted, for example) and only takes up its name."""
        return not self.deleting and self.phase in _OVER

    @property
    def serves(self) -> frozenset[Role]:
        """The roles that requests can arrive for right now."""
        return roles_served(self.role) if self.serving else frozenset()

    @property
    def engine_failed(self) -> bool:
        """The engine cannot start, or died and has not come back."""
        failed = self.termination is not None and self.termination.exit_code in EXIT_MEANINGS
        return (failed or self.waiting_reason == "CrashLoopBackOff") and not self.ready and not self.deleting

    @property
    def failed_device(self) -> DeviceFault | None:
        """The GPU that failed under the engine, which has not come back since."""
        if self.ready or self.termination is None or self.termination.exit_code != EXIT_DEVICE_FAILED:
            return None
        return heard(self.termination.message) or DeviceFault("unknown")

    def as_of(self, now: datetime) -> ObservedWorker:
        """Return the worker without times from the future: a clock was set back, or another machine's is ahead.

        Up to the clock skew of `Tuning` they count as now, else as unknown: to wait for the clock could take years.
        """
        known: dict[str, Any] = {}
        for name in _TIMES:
            at = getattr(self, name)
            if at is not None and at > now:
                known[name] = now if at - now <= timedelta(seconds=TUNING.clock_skew_seconds) else None
        return replace(self, **known) if known else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no worker of a pool is made."""

    message: str
    reason: Reason = Reason.TEMPLATE_REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Readiness of the gateway Deployment and address of its Service."""

    desired: int = 0
    ready: int = 0
    cluster_ip: str | None = None
    rolling: bool = False
    """Some replicas are not yet as the Deployment wants them."""
    stuck: str | None = None
    """What keeps them from it, as Kubernetes says it: an image, a quota, a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that `plan` may know about one InferenceCluster; made once a tick, by `controller.observe`."""

    name: str
    generation: int
    spec: InferenceClusterSpec
    workers: tuple[ObservedWorker, ...] = ()
    """As `rollout.as_seen` returns them."""
    gateway: GatewayState = GatewayState()
    batch_problem: str | None = None
    """What keeps the Pod of `spec.batch` from its start, and what to do; None while it is ready or starts."""
    status: InferenceClusterStatus = field(default_factory=InferenceClusterStatus)
    """The status as it stands; only conditions' transition times and the last decision are carried over from it."""
    paused: bool = False
    continues_rollout: bool = False
    """An annotation says that the rollout of this generation goes on whatever the attainment."""
    taken_names: frozenset[str] = frozenset()
    """Names of Pods that are not of this cluster, so that no worker can have them."""
    measurements: Measurements = field(default_factory=Measurements)
    """Load, latency and speed; read in modes Auto and Observe."""
    asked: Mapping[tuple[str, Role], int] = field(default_factory=dict)
    """Workers that the cluster's InferenceScales ask for, by pool and role; read in mode External."""
    kv_dtype: KvDtype | None = None
    """The element type of the KV cache that new workers get; None: nothing is said of it."""
    model: ModelFacts | None = None
    """What new workers are made for; None: what the tables say of the model's name."""
    model_note: str = ""
    """Where that is from, and what a new revision gets instead; empty: the tables, and the same."""
    model_problem: str | None = None
    """What is wrong with the ConfigMap that `spec.model.config` names: field, fault and fix."""
    profile_problems: tuple[str, ...] = ()
    """What is wrong with profiles that `spec.pools[].profile` names: field, fault and fix of each."""
    preload: PreloadStatus | None = None
    """What came of `model.cache.preload`."""
    scheduling_note: str = ""
    """What there is to know of how the Pods of workers on several nodes are placed; empty: nothing."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Pools whose workers may not be made, and why; workers that are there are left as they are."""


def live(workers: Iterable[ObservedWorker], pool: str) -> tuple[ObservedWorker, ...]:
    """Return the workers of a pool that are not on their way out of the world, by ordinal."""
    return tuple(sorted((w for w in workers if w.pool == pool and w.live), key=lambda w: w.ordinal))


def served_roles(workers: Iterable[ObservedWorker]) -> frozenset[Role]:
    """Return the roles that at least one of `workers` serves right now."""
    return frozenset().union(*(worker.serves for worker in workers))
