"""What is remembered from one rehearsal to the next: when to ask again, and how far plays were off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.rehearse import Answer, Offset
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one cluster."""

    since: float = 0.0
    """Since when the load was of one kind, at the last rehearsal."""
    asked_at: float = 0.0
    stayed: bool = False
    """The last rehearsal changed nothing."""
    offsets: Mapping[Layout, Offset] = field(default_factory=dict)

    def asks(self, seen: Seen, since: float, now: float, attainment: float) -> bool:
        """Report whether there is something to look for, and more is known than at the last time."""
        stretch = seen.since(since)
        if len(stretch) < TUNING.least_requests or float(stretch.missed.mean()) < (1 - attainment) / 3:
            return False
        more = now >= self.asked_at + TUNING.more * (self.asked_at - self.since)
        return not self.stayed or more or self._other_load(since, now)

    def known_offsets(self, since: float, now: float) -> Mapping[Layout, Offset]:
        """Return how far plays of layouts were off under the load of now."""
        return {} if self._other_load(since, now) else self.offsets

    def _other_load(self, since: float, now: float) -> bool:
        """Report whether the load began anew. That its oldest requests are forgotten is no new beginning."""
        began = max(self.since, now - TUNING.memory_seconds)
        return since > began + TUNING.more * (self.asked_at - self.since)


def remembered(answer: Answer, standing: Layout, since: float, now: float) -> Memory:
    """Return what is remembered of a rehearsal."""
    return Memory(since=since, asked_at=now, stayed=answer.chosen == standing, offsets=answer.offsets)
