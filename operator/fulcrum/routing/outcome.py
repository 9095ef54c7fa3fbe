"""Why no path was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NobodyThere:
    """No worker is known at all: the cluster is empty, starting, or out of sight."""


@dataclass(frozen=True, slots=True)
class NobodyFits:
    """Workers exist, but none of them can take this request now: later, or in a pool that has none yet, one can."""

    known: int
    wrong_role: int
    excluded: int


@dataclass(frozen=True, slots=True)
class NoPool:
    """No pool takes this request, now or later: it is too long for any of them, or admitted by none."""

    known: int
