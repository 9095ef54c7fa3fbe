"""The JSONPath subset that printer columns and selectable fields use: fields, indexes, wildcards, filters."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

_Step = Callable[[Any], list[Any]]
_TOKEN: Final = re.compile(
    r"""\.(?P<field>[A-Za-z0-9_$-]+(?:\\\.[A-Za-z0-9_$/-]+)*)      # .status.node\.kubernetes\.io/name
      | \[\s*'(?P<quoted>[^']*)'\s*\] | \[\s*"(?P<double>[^"]*)"\s*\]
      | \[\s*(?P<index>-?\d+)\s*\] | (?P<any>\[\s*\*\s*\]|\.\*)
      | \[\?\(\s*@(?P<path>[^=!<>)\s]+)\s*(?P<operator>==|!=)\s*(?P<literal>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]""",
    re.VERBOSE,
)


def values_at(obj: Any, path: str) -> list[Any]:
    """Every value at `path`; empty when there is none, or when the path cannot be read."""
    found = [obj]
    for step in _steps(path):
        found = [value for item in found for value in step(item)]
    return found


def first_text(values: list[Any]) -> str:
    """How a string column shows what was found: values separated by commas, structures as JSON."""
    import msgspec

    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        return msgspec.json.encode(value).decode()

    return ",".join(text(value) for value in values)


@functools.lru_cache(maxsize=512)
def _steps(path: str) -> tuple[_Step, ...]:
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return (lambda _value: [],)
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> _Step:
    if match["any"] is not None:
        return _children
    if match["index"] is not None:
        return functools.partial(_at_index, int(match["index"]))
    if match["path"] is not None:
        literal = match["literal"].strip("\"'")
        return functools.partial(_filtered, match["path"], match["operator"] == "==", literal)
    name = match["field"] or match["quoted"] or match["double"] or ""
    return functools.partial(_field, name.replace("\\.", "."))


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _at_index(index: int, value: Any) -> list[Any]:
    return [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _field(name: str, value: Any) -> list[Any]:
    return [value[name]] if isinstance(value, dict) and name in value else []


def _filtered(path: str, equal: bool, literal: str, value: Any) -> list[Any]:
    items = value if isinstance(value, list) else []
    return [item for item in items if any(_plain(found) == literal for found in values_at(item, path)) == equal]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
