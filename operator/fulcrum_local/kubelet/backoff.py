"""When a container that ended may start again: at once, then after 10 s doubling to 300 s; 10 good minutes clear it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 10.0
LIMIT_SECONDS: Final = 300.0
RESET_AFTER_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Restarts so far without a good run between them."""

    restarts: int = 0

    @property
    def delay_seconds(self) -> float:
        """Wait before the next start."""
        if self.restarts == 0:
            return 0.0
        return min(FIRST_SECONDS * 2.0 ** (self.restarts - 1), LIMIT_SECONDS)

    def ended(self, *, ran_seconds: float) -> Backoff:
        """The container ended after `ran_seconds`: a run of ten minutes clears the record."""
        return Backoff() if ran_seconds >= RESET_AFTER_SECONDS else self

    def restarted(self) -> Backoff:
        """The container was started again."""
        return Backoff(restarts=self.restarts + 1)
