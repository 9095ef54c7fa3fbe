"""The status of a Deployment from its ReplicaSets. Pure."""

from __future__ import annotations

import datetime as dt

from fulcrum_local.controllers import rollout, times
from fulcrum_local.controllers.pods import condition
from fulcrum_local.controllers.resources import Json

_DEADLINE_SECONDS = 600


def of(deployment: Json, new: Json | None, old: list[Json], now: dt.datetime) -> Json:
    """The fields of the status; None where a field is to be absent."""
    sets = [*([new] if new else []), *old]
    counts = {
        "replicas": _sum(sets, "replicas"),
        "updatedReplicas": _sum([new] if new else [], "replicas"),
        "readyReplicas": _sum(sets, "readyReplicas"),
        "availableReplicas": _sum(sets, "availableReplicas"),
    }
    wanted = deployment["spec"].get("replicas", 1)
    planned = sum(each["spec"].get("replicas", 1) for each in sets)
    counts["unavailableReplicas"] = max(0, max(planned, wanted) - counts["availableReplicas"])
    status: Json = {name: count or None for name, count in counts.items()}
    status["observedGeneration"] = deployment["metadata"]["generation"]
    conditions = [_available(deployment, counts, now), _progressing(deployment, new, counts, now)]
    status["conditions"] = [each for each in conditions if each is not None]
    return status


def _sum(sets: list[Json], field: str) -> int:
    return sum((each.get("status") or {}).get(field, 0) for each in sets)


def _available(deployment: Json, counts: dict[str, int], now: dt.datetime) -> Json:
    _, unavailable = rollout.bounds(deployment["spec"])
    enough = counts["availableReplicas"] >= deployment["spec"].get("replicas", 1) - unavailable
    written = {
        "type": "Available",
        "status": "True" if enough else "False",
        "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        "message": f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    }
    return _condition(condition(deployment, "Available"), written, now)


def _progressing(deployment: Json, new: Json | None, counts: dict[str, int], now: dt.datetime) -> Json | None:
    before = condition(deployment, "Progressing")
    if deployment["spec"].get("paused"):
        return _condition(before, _progress("Unknown", "DeploymentPaused", "Deployment is paused"), now)
    if new is None:
        return before
    named = f'ReplicaSet "{new["metadata"]["name"]}"'
    if _is_complete(deployment, counts):
        text = f"{named} has successfully progressed."
        return _condition(before, _progress("True", "NewReplicaSetAvailable", text), now)
    advanced = before is None or _has_advanced(deployment.get("status") or {}, counts)
    restarted = before is not None and (
        before["reason"] == "NewReplicaSetAvailable" or named not in before.get("message", "")
    )
    if advanced or restarted:
        text = f"{named} is progressing."
        return _condition(before, _progress("True", "ReplicaSetUpdated", text), now, updated=True)
    assert before is not None
    deadline_seconds = deployment["spec"].get("progressDeadlineSeconds", _DEADLINE_SECONDS)
    if (now - times.parse(before["lastUpdateTime"])).total_seconds() > deadline_seconds:
        text = f"{named} has timed out progressing."
        return _condition(before, _progress("False", "ProgressDeadlineExceeded", text), now)
    return before


def _is_complete(deployment: Json, counts: dict[str, int]) -> bool:
    wanted = deployment["spec"].get("replicas", 1)
    return all(counts[name] == wanted for name in ("replicas", "updatedReplicas", "availableReplicas"))


def _has_advanced(before: Json, counts: dict[str, int]) -> bool:
    old_before = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    old_now = counts["replicas"] - counts["updatedReplicas"]
    more = ("updatedReplicas", "readyReplicas", "availableReplicas")
    return bool(old_now < old_before) or any(counts[name] > before.get(name, 0) for name in more)


def _condition(before: Json | None, written: Json, now: dt.datetime, *, updated: bool = False) -> Json:
    """`written` with its times; the one from before when it says the same."""
    if before is not None and not updated and written.items() <= before.items():
        return before
    same_state = before is not None and before["status"] == written["status"]
    transition = before["lastTransitionTime"] if before is not None and same_state else times.text(now)
    return {**written, "lastUpdateTime": times.text(now), "lastTransitionTime": transition}


def _progress(state: str, reason: str, message: str) -> Json:
    return {"type": "Progressing", "status": state, "reason": reason, "message": message}


def seconds_to_deadline(deployment: Json, status: Json, now: dt.datetime) -> float | None:
    """When to look again so that a rollout that hangs is reported; None when nothing hangs."""
    progressing = next((each for each in status["conditions"] if each["type"] == "Progressing"), None)
    if progressing is None or progressing["reason"] != "ReplicaSetUpdated":
        return None
    deadline_seconds = deployment["spec"].get("progressDeadlineSeconds", _DEADLINE_SECONDS)
    passed_seconds = (now - times.parse(progressing["lastUpdateTime"])).total_seconds()
    return max(1.0, float(deadline_seconds - passed_seconds + 1))
