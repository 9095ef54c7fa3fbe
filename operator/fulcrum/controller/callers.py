"""Who asks for a cluster's model, heard from all of its gateways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fulcrum.api.gateway import DemandReport
from fulcrum.decide.measurements import Callers
from fulcrum.telemetry import Agents

FRESH_SECONDS: Final = 6.0
"""Three rounds: an older answer says nothing of requests that came since."""


class HeardCallers:
    """The latest answers of one cluster's gateways, together."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest: tuple[float, Callers] | None = None
        self._all_heard_at = clock()

    async def read(self, agents: Agents, gateways: Mapping[str, str]) -> bool:
        """Ask all ready gateways (Pod name -> address); report whether a decision may change by what they say."""
        before = self.callers()
        reports = await agents.demand(gateways)
        now = self._clock()
        if not gateways or None not in reports:
            # Without a ready gateway no request comes, either.
            self._all_heard_at = now
        found = together([report for report in reports if report is not None], all_heard=None not in reports)
        self._latest = (now, found)
        return (before.held > 0) != (found.held > 0) or (found.idle_seconds == 0) != (before.idle_seconds == 0)

    def callers(self) -> Callers:
        """Return what is known now."""
        now = self._clock()
        silent_seconds = now - self._all_heard_at
        if self._latest is None or now - self._latest[0] > FRESH_SECONDS:
            return Callers(silent_seconds=silent_seconds)
        found = self._latest[1]
        return Callers(
            held=found.held,
            idle_seconds=found.idle_seconds,
            quiet_seconds=found.quiet_seconds,
            silent_seconds=silent_seconds if silent_seconds > FRESH_SECONDS else 0.0,
            first_token_seconds=found.first_token_seconds,
        )


def together(reports: list[DemandReport], *, all_heard: bool) -> Callers:
    """Return what all gateways together say; how long it was quiet only where each of them answered."""
    idle = [report.idle_seconds for report in reports if report.idle_seconds is not None]
    quiet = [report.up_seconds if report.idle_seconds is None else report.idle_seconds for report in reports]
    first = [report.first_token_seconds for report in reports if report.first_token_seconds is not None]
    return Callers(
        held=sum(max(0, report.held) for report in reports),
        idle_seconds=min(idle, default=None),
        quiet_seconds=min(quiet) if quiet and all_heard else None,
        first_token_seconds=max(first, default=None),
    )
