"""Taints that follow from a node's state, and when a Pod must leave because of them. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Final

from fulcrum_local.controllers import times
from fulcrum_local.controllers.pods import condition
from fulcrum_local.controllers.resources import Json

NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_OURS: Final = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE})


def effective_taints(node: Json, *, now: str) -> list[Json]:
    """The node's taints: those of others as they are, those of its state as they should be."""
    ready = condition(node, "Ready")
    key = {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready["status"]) if ready is not None else None
    wanted = [(key, "NoSchedule"), (key, "NoExecute")] if key else []
    if ready is None:
        wanted.append((NOT_READY, "NoSchedule"))  # its kubelet has not reported yet
    if node["spec"].get("unschedulable"):
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    present = node["spec"].get("taints") or []
    kept = [taint for taint in present if taint["key"] not in _OURS or (taint["key"], taint["effect"]) in wanted]
    there = {(taint["key"], taint["effect"]) for taint in kept}
    new = [{"key": key, "effect": effect, "timeAdded": now} for key, effect in wanted if (key, effect) not in there]
    return [*kept, *new]


def tolerates(toleration: Json, taint: Json) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def eviction_due(node: Json, pod: Json, now: dt.datetime) -> float | None:
    """Seconds until the node's NoExecute taints end the Pod: 0 at once, None never."""
    due: list[float] = []
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] != "NoExecute":
            continue
        matching = [each for each in pod["spec"].get("tolerations") or () if tolerates(each, taint)]
        if not matching:
            return 0.0
        limits = [each["tolerationSeconds"] for each in matching if each.get("tolerationSeconds") is not None]
        if limits:
            added = times.parse(taint["timeAdded"]) if taint.get("timeAdded") else now
            due.append(max(0.0, min(limits) - (now - added).total_seconds()))
    return min(due, default=None)
