"""The speed of each pool: what its agents measured at their start, corrected by what requests and reports show since.

A measurement at start is short, and from a machine on which much else may have started at that moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.rows import DecodeRow, PrefillRow, decode_row
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.gateway.workers.registry import KnownRank

_ROW_SECONDS: Final = 2.0
"""Shortest time between two reports that a row of decode steps is made from."""
_LONGEST_SECONDS: Final = 30.0
"""Longest such time: in a longer gap the worker may have been idle."""


class LearnedSpeeds:
    """Follows pools. All of it may be lost: it is learnt again."""

    def __init__(self) -> None:
        self._online: dict[str, OnlineSpeed] = {}
        self._reports: dict[str, tuple[float, LoadReport]] = {}
        """By rank: the report that its next row begins at, and when it came."""

    def speed(self, pool: str, measured: WorkerSpeed | None) -> WorkerSpeed | None:
        """What is known of a pool now; `measured`: by its agents, where new workers begin."""
        if measured is None:
            return None
        if pool not in self._online:
            self._online[pool] = OnlineSpeed.start(measured.coefficients, trust=TRUST[measured.source])
        return dataclasses.replace(measured, coefficients=self._online[pool].coefficients)

    def learn(self, ranks: Iterable[KnownRank], prefills: Mapping[str, Sequence[PrefillRow]], now: float) -> None:
        """Take in the steps with prompts that were seen since the last time, and the newest reports of ranks."""
        rows: dict[str, list[PrefillRow | DecodeRow]] = {pool: list(seen) for pool, seen in prefills.items()}
        living = {rank.name: rank for rank in ranks}
        self._reports = {name: entry for name, entry in self._reports.items() if name in living}
        for name, rank in living.items():
            if rank.report is not None:
                row = self._decode(name, rank.report, now)
                if row is not None:
                    rows.setdefault(rank.state.pool, []).append(row)
        for pool, seen in rows.items():
            if pool in self._online:
                self._online[pool] = self._online[pool].updated(seen)

    def _decode(self, name: str, report: LoadReport, now: float) -> DecodeRow | None:
        began, before = self._reports.get(name, (now, report))
        seconds = now - began
        if name in self._reports and seconds < _ROW_SECONDS:
            return None
        self._reports[name] = (now, report)
        if seconds > _LONGEST_SECONDS or before.role is not Role.DECODE or report.role is not Role.DECODE:
            return None  # idle for an unknown time, or busy with prompts
        return decode_row(before, report, seconds=seconds)
