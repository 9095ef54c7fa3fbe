"""Quantities and times of built-in kinds in the one form that a server stores, whatever form the client wrote."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

from fulcrum.api.quantities import canonical_quantity
from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.times import parse_time, time_text

_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "capacity", "allocatable", "allocatedResources", "overhead"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})
_TIMES: Final = frozenset(
    {
        "creationTimestamp", "deletionTimestamp", "expirationTimestamp", "finishedAt", "firstTimestamp",
        "lastHeartbeatTime", "lastProbeTime", "lastTimestamp", "lastTransitionTime", "lastUpdateTime", "startTime",
        "startedAt", "timeAdded",
    }
)  # fmt: skip
_MICRO_TIMES: Final = frozenset({"acquireTime", "eventTime", "lastObservedTime", "renewTime"})
_FREE: Final = frozenset(
    {
        "annotations", "binaryData", "data", "labels", "managedFields", "matchLabels", "nodeSelector",
        "openAPIV3Schema", "selector", "stringData",
    }
)  # fmt: skip
"""Fields whose keys are the user's, and may be called like a field of ours."""


def canonical(obj: Json) -> Json:
    """`obj` in canonical form; parts that are so already are shared. Errors: ValueError with the server's words."""
    result: Json = _walked(obj)
    return result


def _walked(value: Any) -> Any:
    if isinstance(value, list):
        items = [_walked(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    fields = {name: _field(name, item) for name, item in value.items()}
    return fields if any(fields[name] is not item for name, item in value.items()) else value


def _field(name: str, value: Any) -> Any:
    if name in _FREE or value is None:
        return value
    if name in _QUANTITY_MAPS and isinstance(value, dict):
        return _changed(value, {key: _quantity(amount) for key, amount in value.items()})
    if name in _QUANTITIES and isinstance(value, (str, int, float)):
        return _quantity(value)
    if isinstance(value, str):
        if name in _TIMES:
            return _time(value, time_text)
        return _time(value, _micro_text) if name in _MICRO_TIMES else value
    return _walked(value)


def _changed(old: Json, new: Json) -> Json:
    return old if old == new else new


def _quantity(amount: Any) -> Any:
    if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
        return amount
    text = canonical_quantity(str(amount))
    return amount if amount == text else text


def _time(text: str, written: Callable[[dt.datetime], str]) -> str:
    if not text:
        return text
    try:
        moment = parse_time(text)
    except ValueError:
        layout = "2006-01-02T15:04:05Z07:00"
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"') from None
    if moment.tzinfo is None:
        raise ValueError(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00"')
    same = written(moment.astimezone(dt.UTC))
    return text if text == same else same


def _micro_text(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
