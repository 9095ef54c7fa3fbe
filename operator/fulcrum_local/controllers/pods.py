"""What controllers ask of a Pod."""

from __future__ import annotations

import datetime as dt

from fulcrum_local.controllers import times
from fulcrum_local.controllers.resources import Json


def is_terminating(pod: Json) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def is_finished(pod: Json) -> bool:
    """Whether it has ended for good."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def is_active(pod: Json) -> bool:
    """Whether it counts as a replica."""
    return not is_terminating(pod) and not is_finished(pod)


def condition(obj: Json, name: str) -> Json | None:
    """A condition by its type."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == name), None)


def is_ready(pod: Json) -> bool:
    """Whether it serves."""
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def seconds_until_available(pod: Json, min_ready_seconds: int, now: dt.datetime) -> float | None:
    """0 when it has been ready for long enough, the rest of that time when it is ready, None when it is not."""
    ready = condition(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return None
    since = ready.get("lastTransitionTime")
    if not min_ready_seconds or not since:
        return 0.0
    return max(0.0, min_ready_seconds - (now - times.parse(since)).total_seconds())
