"""A board whose charts are full from the start: the past of a source is read in no time, before the page is served."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fulcrum.dashboard.board import Board
from fulcrum.dashboard.facts import Source
from fulcrum.dashboard.history import SAMPLE_SECONDS


@dataclass(slots=True)
class Clock:
    """Unix time in seconds: a moment that was set, else now."""

    seconds: float | None = None

    def __call__(self) -> float:
        return time.time() if self.seconds is None else self.seconds


async def board_with_past(make: Callable[[Clock], Source], *, origin: str, past_seconds: float) -> Board:
    """Return a board of the source that `make` builds on a clock, with the last `past_seconds` of it in the charts."""
    clock, began = Clock(), time.time()
    board = Board(origin=origin, waiting="", now=clock)
    board.source = make(clock)
    for step in range(int(past_seconds / SAMPLE_SECONDS)):
        clock.seconds = began - past_seconds + step * SAMPLE_SECONDS
        await board.refresh()
    clock.seconds = None
    return board
