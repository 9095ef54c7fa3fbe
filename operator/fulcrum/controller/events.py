"""Kubernetes Events: one per decision, under a name made from the decision, so that repeating it adds none."""

from __future__ import annotations

import hashlib
from datetime import datetime

from fulcrum.api.names import API_VERSION, FIELD_MANAGER
from fulcrum.api.reasons import Reason
from fulcrum.controller.apply import Done
from fulcrum.controller.children import Manifest, Owner
from fulcrum.report import PlanEvent
from fulcrum.rollout import CreateWorker, DeleteWorker, SetRole, StartDrain

_WARNINGS = frozenset({Reason.DRAIN_TIMED_OUT, Reason.GPU_FAILED, Reason.KV_TRANSFER_FAILING, Reason.NODE_LOST})


def event_of_action(owner: Owner, done: Done, now: datetime, *, by: str) -> Manifest:
    """Return the event of an action that was carried out; `by` is the operator's Pod."""
    action = done.action
    match action:
        case CreateWorker():
            message = f"Created worker {action.name} as {action.role.value}."
        case SetRole():
            roles = f"{action.from_role.value} -> {action.role.value}"
            message = f"Worker {action.name}: {roles} (epoch {action.epoch}){_why(action)}."
        case StartDrain():
            message = (
                f"Worker {action.name} finishes its work as {action.from_role.value} and takes no more{_why(action)}."
            )
        case DeleteWorker():
            message = f"Deleted worker {action.name}: {_WHY_DELETED.get(action.reason, action.reason.value)}."
        case _:
            message = action.name
    epoch = getattr(action, "epoch", "")
    subject = f"{type(action).__name__}/{done.uid}/{epoch}"
    return _event(owner, action.reason, message, subject=subject, warning=action.reason in _WARNINGS, now=now, by=by)


def event_of_state(owner: Owner, event: PlanEvent, now: datetime, *, by: str) -> Manifest:
    """Return the event of a change in the cluster's state."""
    return _event(owner, event.reason, event.message, subject=event.subject, warning=event.warning, now=now, by=by)


def _why(action: SetRole | StartDrain) -> str:
    if isinstance(action, StartDrain) and action.restart:
        return ", then it is made anew: no KV moves between it and its peers"
    return f", for {action.load}" if action.load else ""


_WHY_DELETED = {
    Reason.WORKER_DRAINED: "it had finished its work",
    Reason.WORKER_REMOVED: "it has no place any more",
    Reason.WORKER_REPLACED: "another takes its place",
    Reason.NODE_LOST: "its node does not answer any more or is gone",
    Reason.GPU_FAILED: "a GPU of its node failed",
    Reason.DRAIN_TIMED_OUT: "its drain took longer than spec.balance.flip.drainTimeout",
}


def _event(
    owner: Owner, reason: Reason, message: str, *, subject: str, warning: bool, now: datetime, by: str
) -> Manifest:
    digest = hashlib.sha256(f"{owner.uid}/{reason.value}/{subject}".encode()).hexdigest()[:16]
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{owner.name}.{digest}", "namespace": owner.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": owner.kind,
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason.value,
        "message": message[:1024],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": by,
    }
