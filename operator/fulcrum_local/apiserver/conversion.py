"""Objects between the version that a client uses and the one that is stored."""

from __future__ import annotations

from typing import Any, Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.kinds import Kind

# (events.k8s.io/v1, v1): events are stored as v1, which kubectl describe reads.
_EVENT_FIELDS: Final = (
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
)
_NEW_EVENTS: Final = "events.k8s.io"


def stored_form(kind: Kind, obj: Json) -> Json:
    """A client's object as it is stored."""
    if kind.group == _NEW_EVENTS:
        return _renamed(obj, dict(_EVENT_FIELDS), "v1")
    return obj


def served_form(kind: Kind, obj: Json) -> Json:
    """A stored object in the version of `kind`; `obj` itself when that is the stored one."""
    if kind.group == _NEW_EVENTS:
        return _renamed(obj, {old: new for new, old in _EVENT_FIELDS}, f"{_NEW_EVENTS}/v1")
    if kind.custom is not None and obj.get("apiVersion") != kind.api_version:
        return {**obj, "apiVersion": kind.api_version}
    return obj


def is_stored_form(kind: Kind, obj: Json) -> bool:
    """Whether `served_form` would change nothing, so that stored bytes can be sent as they are."""
    return obj.get("apiVersion") == kind.api_version


def _renamed(obj: Json, names: dict[str, str], api_version: str) -> Json:
    converted: dict[str, Any] = {names.get(name, name): value for name, value in obj.items()}
    converted["apiVersion"] = api_version
    return converted
