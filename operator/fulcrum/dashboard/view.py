"""From what is known of a cluster to the documents that the page shows. Pure: facts in, documents out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from fulcrum.api.durations import seconds
from fulcrum.api.names import LABEL_POOL, LABEL_ROLE, Role
from fulcrum.api.quantities import three_digits
from fulcrum.api.status import ConditionStatus, ConditionType, InferenceClusterStatus, LatencyQuantiles
from fulcrum.api.worker import LoadReport
from fulcrum.dashboard.facts import ClusterFacts, Json
from fulcrum.dashboard.public import message_of
from fulcrum.dashboard.wire import ConditionRow, DecisionRow, Detail, ForecastRow, Latency, RoleRow, Row, WorkerRow
from fulcrum.decide.target import ratio_text

DECISIONS: Final = 15
"""Decisions that are shown of a cluster: more are history, for `kubectl get events`."""
_ROLE_ORDER: Final = tuple(role.value for role in (Role.PREFILL, Role.DECODE, Role.MIXED, Role.DRAINING))


def status_of(document: Json) -> InferenceClusterStatus:
    """Return the status of an InferenceCluster; an empty one where another version wrote it."""
    try:
        return msgspec.convert(document.get("status") or {}, InferenceClusterStatus)
    except msgspec.ValidationError:
        return InferenceClusterStatus()


def row(facts: ClusterFacts, status: InferenceClusterStatus) -> Row:
    """Return a cluster's line in the list."""
    metadata, spec = facts.document["metadata"], facts.document.get("spec") or {}
    state, reason = _state(status)
    loads, traffic, model = facts.loads.values(), facts.traffic, spec.get("model") or {}
    return Row(
        key=facts.key,
        name=metadata["name"],
        namespace=metadata["namespace"],
        state=state,
        reason=reason,
        model=str(model.get("servedName") or model.get("name") or ""),
        mode=str((spec.get("balance") or {}).get("mode") or ""),
        ratio=status.ratio,
        target=_target(status),
        ready=status.ready,
        workers=len(facts.pods),
        running=_sum(load.running for load in loads),
        waiting=_sum(load.waiting for load in loads),
        kv=_share(max((load.kv_usage for load in loads if load.kv_usage is not None), default=None)),
        rate=_figure(traffic.rate if traffic else None),
        forecast=_figure(status.forecast.rate if status.forecast else None),
        attainment=status.attainment,
        promise=_number((spec.get("slo") or {}).get("attainment")),
        rejected=status.rejected_ratio,
    )


def detail(facts: ClusterFacts, status: InferenceClusterStatus, shown: Row) -> Detail:
    """Return all that is shown of a cluster beside its workers."""
    slo, ahead, traffic = (facts.document.get("spec") or {}).get("slo") or {}, status.forecast, facts.traffic
    return Detail(
        row=shown,
        endpoint=status.endpoint or "",
        conditions=tuple(
            ConditionRow(
                type=each.type.value,
                status=each.status.value,
                reason=each.reason.value,
                message=message_of(each.reason, each.message, key=facts.key),
                since=each.last_transition_time,
            )
            for each in status.conditions
        ),
        roles=tuple(
            RoleRow(role=role, desired=counts.desired, ready=counts.ready, draining=counts.draining)
            for role, counts in sorted(status.roles.items(), key=lambda entry: _ROLE_ORDER.index(entry[0]))
        ),
        ttft=_latency(status.ttft, slo.get("ttft")),
        tpot=_latency(status.tpot, slo.get("tpot")),
        forecast=ForecastRow(
            method=ahead.method, rate=ahead.rate, upper=ahead.upper_rate, horizon=ahead.horizon, error=ahead.error
        )
        if ahead is not None
        else None,
        rejections=None
        if traffic is None
        else {reason.value: three_digits(share * traffic.rate) for reason, share in traffic.rejections.items()},
        queued=status.queued,
        batches=status.batches,
        decisions=_decisions(facts, status),
        last=status.last_decision,
    )


def workers(facts: ClusterFacts) -> list[WorkerRow]:
    """Return the workers by role, then by name and number."""
    rows = [_worker(pod, facts.loads.get(pod["metadata"]["name"])) for pod in facts.pods]
    return sorted(rows, key=_order)


def _order(worker: WorkerRow) -> tuple[int, str, int]:
    stem, _, ordinal = worker.name.rpartition("-")
    place = _ROLE_ORDER.index(worker.role) if worker.role in _ROLE_ORDER else len(_ROLE_ORDER)
    return place, stem, int(ordinal) if ordinal.isdecimal() else 0


def _worker(pod: Json, load: LoadReport | None) -> WorkerRow:
    metadata, status = pod["metadata"], pod.get("status") or {}
    marks = metadata.get("labels") or {}
    containers = status.get("containerStatuses") or []
    is_ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return WorkerRow(
        name=metadata["name"],
        role=marks.get(LABEL_ROLE, ""),
        pool=marks.get(LABEL_POOL, ""),
        state=_pod_state(metadata, status, containers, is_ready=is_ready),
        created=metadata.get("creationTimestamp") or "",
        ready=is_ready,
        restarts=sum(container.get("restartCount") or 0 for container in containers),
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        kv=_share(load.kv_usage if load else None),
    )


def _pod_state(metadata: Json, status: Json, containers: list[Json], *, is_ready: bool) -> str:
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    waiting = (((c.get("state") or {}).get("waiting") or {}).get("reason") for c in containers)
    # What a container said when it ended is not shown: it is the engine's own output.
    return next(filter(None, waiting), None) or ("ready" if is_ready else str(status.get("phase") or "Pending"))


def _state(status: InferenceClusterStatus) -> tuple[str, str]:
    found = {each.type: each for each in status.conditions}
    available = found.get(ConditionType.AVAILABLE)
    degraded, progressing = found.get(ConditionType.DEGRADED), found.get(ConditionType.PROGRESSING)
    if degraded is not None and degraded.status is ConditionStatus.TRUE:
        is_served = available is not None and available.status is ConditionStatus.TRUE
        return ("warn" if is_served else "bad"), degraded.reason.value
    if available is None:
        return "unknown", ""
    if available.status is not ConditionStatus.TRUE:
        return "bad", available.reason.value
    if progressing is not None and progressing.status is ConditionStatus.TRUE:
        return "busy", progressing.reason.value
    return "ok", ""


def _target(status: InferenceClusterStatus) -> str | None:
    return ratio_text({role: counts.desired for role, counts in status.roles.items()}) if status.roles else None


def _latency(measured: LatencyQuantiles | None, promise: str | None) -> Latency:
    found = measured or LatencyQuantiles()
    late = found.p90 is not None and promise is not None and seconds(found.p90) > seconds(promise)
    return Latency(p50=found.p50, p90=found.p90, p99=found.p99, promise=promise, late=late)


def _decisions(facts: ClusterFacts, status: InferenceClusterStatus) -> tuple[DecisionRow, ...]:
    uid = facts.document["metadata"]["uid"]
    rows = [
        DecisionRow(
            time=stamp,
            reason=event.get("reason") or "",
            message=message_of(event.get("reason") or "", event.get("message") or "", key=facts.key),
            warning=event.get("type") == "Warning",
        )
        for event in facts.events
        if event["involvedObject"].get("uid") == uid
        and (stamp := event.get("lastTimestamp") or event.get("eventTime") or "")
    ]
    last = status.last_decision
    if last is not None and not any(row.reason == last.reason and row.time >= last.time for row in rows):
        # Events are kept for an hour; the last decision stands in the status for as long as the object.
        rows.append(
            DecisionRow(
                time=last.time, reason=last.reason.value, message=f"{last.action}, from {last.from_} to {last.to}."
            )
        )
    return tuple(sorted(rows, key=lambda each: each.time, reverse=True)[:DECISIONS])


def point(status: InferenceClusterStatus, shown: Row) -> Mapping[str, float | None]:
    """Return what the charts keep of a moment, by the names of `history.SERIES`."""
    counts = {role: status.roles.get(role) for role in (Role.PREFILL, Role.DECODE, Role.MIXED)}
    ahead = status.forecast
    figures: dict[str, Any] = {}
    for role, found in counts.items():
        figures[role.value] = found.ready if found else None
        figures[f"{role.value}_target"] = found.desired if found else None
    return figures | {
        "rate": shown.rate,
        "forecast": ahead.rate if ahead else None,
        "upper": ahead.upper_rate if ahead else None,
        "attainment": status.attainment,
        "rejected": status.rejected_ratio,
    }


def _sum(figures: Iterable[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _share(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _figure(figure: float | None) -> float | None:
    """Three digits: the fourth is noise, and each change is sent to every page."""
    return None if figure is None else three_digits(figure)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
