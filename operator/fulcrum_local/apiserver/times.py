"""Times as the API writes them, and ages as kubectl prints them."""

from __future__ import annotations

import datetime as dt
from typing import Final

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_STEPS: Final = (
    # below this many seconds: unit, and a smaller unit beside it (0: none)
    (120, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (180 * _MINUTE, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (48 * _HOUR, _HOUR, "h", 0, ""),
    (192 * _HOUR, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def now() -> dt.datetime:
    """The current time, UTC."""
    return dt.datetime.now(dt.UTC)


def time_text(moment: dt.datetime) -> str:
    """`2026-01-02T03:04:05Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def now_text() -> str:
    """The current time as the API writes it."""
    return time_text(now())


def parse_time(text: str) -> dt.datetime:
    """A `Time` or `MicroTime` of an object."""
    return dt.datetime.fromisoformat(text)


def age(text: str | None) -> str:
    """How long ago `text` was, as kubectl prints it: `5s`, `3m20s`, `2d4h`; `<unknown>` when unset."""
    if not text:
        return "<unknown>"
    try:
        seconds = int((now() - parse_time(text)).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"
    return human_duration(seconds)


def human_duration(seconds: int) -> str:
    """Length of time with at most two units, as `k8s.io/apimachinery` `HumanDuration` rounds it."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    for limit, unit_seconds, unit, small_seconds, small_unit in _STEPS:
        if seconds < limit:
            small = seconds % unit_seconds // small_seconds if small_seconds else 0
            return f"{seconds // unit_seconds}{unit}" + (f"{small}{small_unit}" if small else "")
    return f"{seconds // _YEAR}y"
