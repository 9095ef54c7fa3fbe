"""JSON values as CEL sees them through a structural schema: numbers typed, times parsed, names escaped."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

_RESERVED = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_UNITS_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([+-]?)((?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+|0)")
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")


def escaped(name: str) -> str:
    """A property's name as an expression writes it: `namespace` -> `__namespace__`, `a-b` -> `a__dash__b`."""
    if name in _RESERVED:
        return f"__{name}__"
    return re.sub(r"__|[.\-/]", lambda match: _ESCAPES[match[0]], name)


def duration(text: str) -> dt.timedelta:
    """A Go duration such as `1h30m`; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"time: invalid duration {text!r}")
    seconds = sum(float(number) * _UNITS_SECONDS[unit] for number, unit in _DURATION_PART.findall(match[2]))
    return dt.timedelta(seconds=-seconds if match[1] == "-" else seconds)


def timestamp(text: str) -> dt.datetime:
    """An RFC 3339 time; raises ValueError."""
    time = dt.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    return time


def to_cel(value: Any, schema: dict[str, Any]) -> Any:
    """`value` for an expression on a node of `schema`."""
    if isinstance(value, dict):
        return _map_to_cel(value, schema)
    if isinstance(value, list):
        items = schema.get("items", {})
        return [to_cel(item, items) for item in value]
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if schema.get("type") == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return _string_to_cel(value, schema)
    return value


def _map_to_cel(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the members that the schema describes: rules see no others, and those are what may be large."""
    properties = schema.get("properties")
    if properties is None:
        values = schema.get("additionalProperties")
        return {key: to_cel(item, values) for key, item in value.items()} if isinstance(values, dict) else {}
    return {escaped(key): to_cel(item, properties[key]) for key, item in value.items() if key in properties}


def _string_to_cel(value: str, schema: dict[str, Any]) -> Any:
    try:
        match schema.get("format"):
            case "duration":
                return duration(value)
            case "date-time":
                return timestamp(value)
            case "date":
                return dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC)
            case _:
                return value
    except ValueError:  # the format check reports it; the rule sees what is there
        return value
