"""What an InferenceGateway's status says: which clusters it may use, what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from fulcrum.api.front_types import (
    FrontCondition,
    FrontConditionType,
    FrontModel,
    InferenceGateway,
    InferenceGatewayStatus,
    ServingCluster,
)
from fulcrum.api.messages import names_of
from fulcrum.api.reasons import Reason
from fulcrum.api.status import ConditionStatus, ConditionType
from fulcrum.api.types import InferenceCluster
from fulcrum.front.routes import cluster_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong, where, and what to do."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is of an InferenceGateway."""

    gateway: InferenceGateway
    clusters: Mapping[str, InferenceCluster]
    """By `<namespace>/<name>`: those that exist, of all that the spec names."""
    endpoint: str | None = None
    ready_fronts: int = 0
    replicas: int = 1
    """That the Deployment asks for."""
    failures: tuple[Problem, ...] = ()
    """What the operator could not bring up to date."""


def report(seen: Seen, now: str) -> InferenceGatewayStatus:
    """Return the whole status; `now` is a timestamp for conditions that change."""
    gateway = seen.gateway
    names = sorted({name for model in gateway.spec.models for name in named_clusters(model, gateway)})
    usable = {name: cluster for name in names if (cluster := usable_cluster(seen, name)) is not None}
    served = [model for model in gateway.spec.models if any(name in usable for name in named_clusters(model, gateway))]
    problems = [*seen.failures, *_problems(seen, names)]
    conditions = (
        _available(seen, served),
        _condition(gateway, FrontConditionType.DEGRADED, bool(problems), *_told(problems)),
    )
    return InferenceGatewayStatus(
        observed_generation=gateway.metadata.generation,
        endpoint=seen.endpoint,
        ready=f"{len(served)}/{len(gateway.spec.models)}",
        replicas=seen.replicas,
        clusters=tuple(usable.values()),
        conditions=tuple(_dated(condition, gateway, now) for condition in conditions),
    )


def named_clusters(model: FrontModel, gateway: InferenceGateway) -> Iterator[str]:
    """Yield `<namespace>/<name>` of each cluster that a model may be served by."""
    for reference in (*model.backends, *model.fallback):
        yield cluster_name(reference, gateway.metadata.namespace)


def usable_cluster(seen: Seen, name: str) -> ServingCluster | None:
    """Return a cluster that exists, has an address, and grants its use to this namespace; None otherwise."""
    cluster = seen.clusters.get(name)
    if cluster is None or cluster.status.endpoint is None or not _grants(cluster, seen.gateway.metadata.namespace):
        return None
    headers = {each.match.header.lower() for each in cluster.spec.admission.classes if each.match is not None}
    return ServingCluster(
        name=name,
        endpoint=cluster.status.endpoint,
        served_name=cluster.spec.model.served_name or cluster.metadata.name,
        headers=tuple(sorted(headers)),
        takes_keys=cluster.metadata.namespace == seen.gateway.metadata.namespace,
    )


def _grants(cluster: InferenceCluster, namespace: str) -> bool:
    return cluster.metadata.namespace == namespace or namespace in cluster.spec.gateway.allowed_namespaces


def _problems(seen: Seen, names: list[str]) -> Iterator[Problem]:
    own = seen.gateway.metadata.namespace
    for name in names:
        cluster = seen.clusters.get(name)
        namespace, _, short = name.partition("/")
        if cluster is None and namespace == own:
            yield Problem(
                reason=Reason.CLUSTER_MISSING,
                message=f"InferenceCluster {short} does not exist: create it, or take it out of spec.models.",
            )
        elif cluster is None or not _grants(cluster, own):
            # The same words for both: what another namespace has is not told.
            yield Problem(
                reason=Reason.NOT_GRANTED,
                message=f"InferenceCluster {name} is not granted to namespace {own}: add {own} to its "
                "spec.gateway.allowedNamespaces. The operator must watch that namespace, too.",
            )
        elif not _is_available(cluster):
            yield Problem(
                reason=Reason.CLUSTER_NOT_READY,
                message=f"InferenceCluster {name} is not available: kubectl describe ic {short} -n {namespace}.",
            )
    yield from _keys_not_passed(seen)
    yield from _adapters_missing(seen)


def _keys_not_passed(seen: Seen) -> Iterator[Problem]:
    """A cluster of another namespace that asks for keys never sees the ones that a front has checked."""
    gateway = seen.gateway
    for model in gateway.spec.models:
        for name in named_clusters(model, gateway) if model.auth is not None else ():
            cluster = seen.clusters.get(name)
            own = name.partition("/")[0] == gateway.metadata.namespace
            if cluster is not None and not own and cluster.spec.gateway.auth is not None:
                yield Problem(
                    reason=Reason.KEYS_NOT_PASSED,
                    message=f"Model {model.name} has keys of its own, which InferenceCluster {name} of another "
                    "namespace is not sent, and it asks for keys, too: remove auth from one of the two.",
                )


def _adapters_missing(seen: Seen) -> Iterator[Problem]:
    for model in seen.gateway.spec.models:
        for name in dict.fromkeys(named_clusters(model, seen.gateway)) if model.adapter is not None else ():
            cluster = seen.clusters.get(name)
            if cluster is None or not _grants(cluster, seen.gateway.metadata.namespace):
                continue
            listed = cluster.spec.adapters.list if cluster.spec.adapters is not None else ()
            if all(adapter.name != model.adapter for adapter in listed):
                yield Problem(
                    reason=Reason.ADAPTER_MISSING,
                    message=f"Model {model.name} is adapter {model.adapter}, which InferenceCluster {name} does not "
                    "have: add it to its spec.adapters.list, or take the cluster out of the model.",
                )


def _is_available(cluster: InferenceCluster) -> bool:
    return cluster.status.endpoint is not None and any(
        each.type is ConditionType.AVAILABLE and each.status is ConditionStatus.TRUE
        for each in cluster.status.conditions
    )


def _available(seen: Seen, served: list[FrontModel]) -> FrontCondition:
    gateway = seen.gateway
    without = [model.name for model in gateway.spec.models if model not in served]
    kind = FrontConditionType.AVAILABLE
    if not seen.ready_fronts:
        message = f"No front is ready: kubectl describe deploy {gateway.metadata.name}-front."
        return _condition(gateway, kind, False, Reason.GATEWAY_NOT_READY, message)
    if without:
        message = f"No cluster can be asked for {names_of(without)}; condition Degraded says why."
        return _condition(gateway, kind, False, Reason.CLUSTER_MISSING, message)
    return _condition(gateway, kind, True, Reason.READY, "Every model has a cluster.")


def _told(problems: list[Problem]) -> tuple[Reason, str]:
    if not problems:
        return Reason.HEALTHY, "Nothing is wrong."
    return problems[0].reason, " ".join(problem.message for problem in problems)[:8192]


def _condition(
    gateway: InferenceGateway, kind: FrontConditionType, holds: bool, reason: Reason, message: str
) -> FrontCondition:
    return FrontCondition(
        type=kind,
        status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
        reason=reason,
        message=message,
        observed_generation=gateway.metadata.generation,
        last_transition_time="",
    )


def _dated(condition: FrontCondition, gateway: InferenceGateway, now: str) -> FrontCondition:
    """The time of the last change of its status: that of before where the status is the same."""
    before = next((each for each in gateway.status.conditions if each.type is condition.type), None)
    same = before is not None and before.status is condition.status
    since = before.last_transition_time if before is not None and same else now
    return msgspec.structs.replace(condition, last_transition_time=since)
