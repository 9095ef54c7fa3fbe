"""Texts of conditions: what others said, and lists of names, each within its bound."""

from __future__ import annotations

from typing import Final

_SAID_BYTES: Final = 1024
"""How much a condition repeats of what an engine, the kubelet or the API server said: about twelve lines."""
_NAMED: Final = 8
"""How many workers a message lists by name: more are hard to read, and each change of a condition is a write."""


def last_lines(text: str) -> str:
    """The end of `text` in at most `_SAID_BYTES` of UTF-8, from the beginning of a line where there is one."""
    tail = text.encode()[-_SAID_BYTES:].decode(errors="ignore")
    return tail if tail == text else tail.partition("\n")[2] or tail


def shortened(text: str) -> str:
    """The beginning of `text` in at most `_SAID_BYTES` of UTF-8."""
    return text.encode()[:_SAID_BYTES].decode(errors="ignore")


def names_of(names: list[str]) -> str:
    """Names for a message, at most `_NAMED` of them and the number of the others."""
    listed = ", ".join(names[:_NAMED])
    return listed if len(names) <= _NAMED else f"{listed} and {len(names) - _NAMED} more"
