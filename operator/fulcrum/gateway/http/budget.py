"""Memory held for many clients, bounded for all together: the one that holds most gives way."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

Holder = TypeVar("Holder")
_LEFT: Final = 0.75
"""Share of the budget that stays in use after clients were cut, so that the next byte does not begin another search."""


class Budget(Generic[Holder]):
    """Bytes by holder."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: dict[Holder, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, holder: Holder, held_bytes: int) -> list[Holder]:
        """Note what `holder` holds now; returns the holders that must give theirs up, where all hold too much."""
        self.total_bytes += held_bytes - self._held.get(holder, 0)
        self._held[holder] = held_bytes
        if self.total_bytes <= self._most_bytes:
            return []
        over_bytes = self.total_bytes - self._most_bytes * _LEFT
        victims = []
        for victim in sorted(self._held, key=self._held.__getitem__, reverse=True):
            victims.append(victim)
            over_bytes -= self._held[victim]
            if over_bytes <= 0:
                break
        return victims

    def release(self, holder: Holder) -> None:
        """`holder` holds nothing any more."""
        self.total_bytes -= self._held.pop(holder, 0)
