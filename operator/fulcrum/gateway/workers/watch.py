"""Follows the cluster's Pods: list, then watch, for ever; what was last known stays while the API server is away.

Workers become the view that requests are routed by. Gateways are counted: they share what is promised once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from fulcrum import kube
from fulcrum.api import names
from fulcrum.api.kv_format import kv_format
from fulcrum.api.names import Role
from fulcrum.api.ports import ports_of
from fulcrum.api.worker import ENGINE_KV_DTYPES, EXIT_ENGINE_DIED, WorkerConfig
from fulcrum.gateway.config import Settings
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers.registry import WorkerRegistry

logger = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 120.0
"""A new LIST this often prunes what a watch may have missed."""
_MOST_RANKS: Final = 1024
"""Most ranks of data parallel that a Pod is believed to have: each costs memory here."""


# Of a Pod only what routing needs is decoded; names are those on the wire.


class Metadata(msgspec.Struct):
    """Identity of the Pod."""

    name: str
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class EnvVar(msgspec.Struct):
    """One variable of a container."""

    name: str
    value: str | None = None


class Container(msgspec.Struct):
    """What a container runs."""

    name: str = ""
    image: str | None = None
    env: list[EnvVar] | None = None


class PodSpec(msgspec.Struct):
    """What the Pod runs, and where."""

    containers: list[Container] = []
    nodeName: str | None = None  # noqa: N815


class Condition(msgspec.Struct):
    """One condition of the Pod."""

    type: str
    status: str


class Terminated(msgspec.Struct):
    """How a container ended."""

    exitCode: int = 0  # noqa: N815


class ContainerState(msgspec.Struct):
    """What a container does, or did last."""

    terminated: Terminated | None = None
    running: dict[str, object] | None = None


class ContainerStatus(msgspec.Struct):
    """How often a container was started again, and why."""

    restartCount: int = 0  # noqa: N815
    state: ContainerState | None = None
    lastState: ContainerState | None = None  # noqa: N815


class PodStatus(msgspec.Struct):
    """How the Pod is."""

    phase: str | None = None
    podIP: str | None = None  # noqa: N815
    conditions: list[Condition] | None = None
    containerStatuses: list[ContainerStatus] | None = None  # noqa: N815


class Pod(msgspec.Struct):
    """A Pod as far as routing needs it."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


_PODS: Final = kube.Resource(api_version="v1", kind="Pod", plural="pods")


class Follower(Protocol):
    """Whose view of workers, and whose count of gateways, is kept."""

    settings: Settings
    registry: WorkerRegistry
    metrics: Metrics
    watch_connected: bool
    batch_host: str | None

    def share(self, gateways: int) -> None:
        """So many gateways, this one included, share the traffic."""

    def meet(self, hosts: frozenset[str]) -> None:
        """The other ready gateways are at these addresses."""


def record_of(pod: Pod) -> WorkerRecord | None:
    """The worker that a Pod is; None while no request may go to it."""
    metadata, status = pod.metadata, pod.status
    ports = ports_of(metadata.annotations)
    if not _is(pod, names.COMPONENT_WORKER) or not _ready(pod) or not status.podIP or ports is None:
        return None
    try:
        role = Role((metadata.labels or {}).get(names.LABEL_ROLE, ""))
    except ValueError:
        return None
    restarts = sum(each.restartCount for each in status.containerStatuses or ())
    config = _worker_config(pod)
    return WorkerRecord(
        name=metadata.name,
        role=role,
        role_epoch=names.role_epoch(metadata.annotations),
        host=status.podIP,
        port=ports.engine,
        agent_port=ports.agent,
        incarnation=f"{metadata.uid}/{restarts}",
        pool=(metadata.labels or {}).get(names.LABEL_POOL, ""),
        revision=_revision(pod, role),
        kv_cache_dtype="" if config is None else ENGINE_KV_DTYPES.get(config.kv_cache.dtype, ""),
        node=pod.spec.nodeName or "",
        config=config,
        data_parallel=1 if config is None else _ranks(config.data_parallel),
    )


def _usable(pod: Pod) -> WorkerRecord | None:
    """The same; None also for a Pod that no rule has foreseen: the other Pods of a list count."""
    try:
        return record_of(pod)
    except Exception:
        logger.exception("pod_unreadable name=%s", pod.metadata.name)
        return None


def end_of(pod: Pod, *, deleted: bool = False) -> tuple[str, bool] | None:
    """The engine process of a worker Pod that has ended last, and whether it crashed; None: none has.

    A process is named as in its record: by the Pod and the restarts before it.
    """
    uid, restarts = pod.metadata.uid, sum(each.restartCount for each in pod.status.containerStatuses or ())
    if deleted or pod.metadata.deletionTimestamp is not None:  # an engine that dies while it is drained is no crash
        return f"{uid}/{restarts}", False
    for container in pod.status.containerStatuses or ():
        now, last = container.state, container.lastState
        if now is not None and now.terminated is not None:
            return f"{uid}/{restarts}", now.terminated.exitCode == EXIT_ENGINE_DIED
        if last is not None and last.terminated is not None:
            before = restarts - 1 if now is not None and now.running is not None else restarts
            return f"{uid}/{before}", last.terminated.exitCode == EXIT_ENGINE_DIED
    return None


def _is(pod: Pod, component: str) -> bool:
    return (pod.metadata.labels or {}).get(names.LABEL_COMPONENT) == component


def _ready(pod: Pod) -> bool:
    if pod.metadata.deletionTimestamp is not None or pod.status.phase != "Running":
        return False
    conditions = pod.status.conditions or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def _revision(pod: Pod, role: Role) -> str:
    """What the format of a worker's KV depends on. The hash on the Pod will not do: each pool has its own.

    A worker that was made to be mixed, and has another role now, can hand KV to none.
    """
    for image, document in _configs(pod):
        config = _config(document)
        if config is not None and not config.exchanges_kv and role is not Role.MIXED:
            return f"{pod.metadata.name} exchanges no KV"
        return document if config is None else _kv_format(image, document)
    return ""


def _worker_config(pod: Pod) -> WorkerConfig | None:
    return next((_config(document) for _, document in _configs(pod)), None)


def _configs(pod: Pod) -> Iterator[tuple[str, str]]:
    """Image and configuration of the worker's container."""
    for container in pod.spec.containers:
        for variable in container.env or ():
            if variable.name == names.ENV_WORKER_CONFIG and variable.value:
                yield container.image or "", variable.value


@lru_cache(maxsize=256)  # one log line for each value
def _ranks(said: int) -> int:
    if 1 <= said <= _MOST_RANKS:
        return said
    logger.warning("worker_config_unusable field=dataParallel value=%d taken=1", said)
    return 1


@lru_cache(maxsize=256)
def _config(document: str) -> WorkerConfig | None:
    try:
        return msgspec.json.decode(document, type=WorkerConfig)
    except (msgspec.DecodeError, RecursionError):  # of another version, or a template's
        return None


@lru_cache(maxsize=256)
def _kv_format(image: str, document: str) -> str:
    return kv_format(msgspec.json.decode(document, type=WorkerConfig), image)


async def watch_workers(follower: Follower) -> None:
    """Keep `follower.view` equal to the usable worker Pods of its cluster, and count its gateways.

    Returns only when cancelled.
    """
    # One watch for both: what is known of one is as old as what is known of the other.
    selectors = kube.selector({names.LABEL_CLUSTER: follower.settings.config.cluster})
    others: dict[str, str] = {}
    follower.registry.learns_ends = True
    path = _PODS.collection(follower.settings.namespace)
    api = kube.Api()
    try:
        async for event in kube.follow(api, path, Pod, selectors=selectors, relist_seconds=_RESYNC_SECONDS):
            try:
                take(follower, event, others)
                take_batch_pod(follower, event)
            except Exception:  # the edge: whatever the API server sends, the gateway must go on following it
                logger.exception("watch_failed")
    finally:
        await api.close()


def take(follower: Follower, event: kube.Event[Pod], others: dict[str, str]) -> None:
    """Take in what the API server says. `others`: addresses of the other ready gateways by name, kept up to date."""
    registry = follower.registry
    match event:
        case kube.Listed(items=pods):
            records = [_usable(pod) for pod in pods]
            registry.replace(record for record in records if record is not None)
            others.clear()
            others.update((pod.metadata.name, pod.status.podIP or "") for pod in pods if _shares(pod, follower))
            _tell(follower, others)
        case kube.Changed(kind=kind, object=pod) if _is(pod, names.COMPONENT_GATEWAY):
            before = others.pop(pod.metadata.name, None)
            now = (pod.status.podIP or "") if kind != "DELETED" and _shares(pod, follower) else None
            if now is not None:
                others[pod.metadata.name] = now
            if now != before:
                _tell(follower, others)
        case kube.Changed(kind=kind, object=pod):
            if _is(pod, names.COMPONENT_WORKER) and (end := end_of(pod, deleted=kind == "DELETED")) is not None:
                registry.ended(pod.metadata.name, end[0], crashed=end[1])
            record = None if kind == "DELETED" else _usable(pod)
            if record is not None:
                registry.put(record)
            else:
                registry.remove(pod.metadata.name, "deleted" if kind == "DELETED" else "not_usable")
        case kube.Connected():
            follower.watch_connected = True
        case kube.Interrupted(error=error):
            follower.watch_connected = False
            cause = _cause(error)
            follower.metrics.watch_restarts[cause] += 1
            logger.warning("watch_broken cause=%s workers_kept=%d error=%s", cause, len(registry.workers), error)
        case kube.Bookmark():
            pass


def _tell(follower: Follower, others: Mapping[str, str]) -> None:
    follower.share(len(others) + 1)
    follower.meet(frozenset(host for host in others.values() if host))


def _shares(pod: Pod, follower: Follower) -> bool:
    """Whether a Pod is another gateway to which clients are sent."""
    return _is(pod, names.COMPONENT_GATEWAY) and _ready(pod) and pod.metadata.name != follower.settings.pod_name


def take_batch_pod(follower: Follower, event: kube.Event[Pod]) -> None:
    """Keep the address of the cluster's batch Pod; None while it is not ready."""
    match event:
        case kube.Listed(items=pods):
            follower.batch_host = next((pod.status.podIP for pod in pods if _runs_batches(pod)), None)
        case kube.Changed(kind=kind, object=pod) if _is(pod, names.COMPONENT_BATCH):
            if kind != "DELETED" and _runs_batches(pod):
                follower.batch_host = pod.status.podIP
            elif follower.batch_host == pod.status.podIP:
                follower.batch_host = None
        case _:
            pass


def _runs_batches(pod: Pod) -> bool:
    return _is(pod, names.COMPONENT_BATCH) and _ready(pod)


def _cause(error: kube.ApiFailure) -> str:
    match error:
        case kube.ApiError(code=410):
            return "gone"
        case kube.ApiError(code=code):
            return f"status_{code}"
        case kube.ConfigError():
            return "config"
        case _:
            return "connection"
