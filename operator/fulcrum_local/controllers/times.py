"""Times as Kubernetes writes them."""

from __future__ import annotations

import datetime as dt


def now() -> dt.datetime:
    """The wall clock, UTC."""
    return dt.datetime.now(dt.UTC)


def text(time: dt.datetime) -> str:
    """RFC 3339 in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(value: str) -> dt.datetime:
    """Read RFC 3339. Errors: ValueError."""
    return dt.datetime.fromisoformat(value)
