"""Constants of rehearsals, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What rehearsals are made with."""

    memory_seconds: float = 600.0
    """How far back requests are looked at: the ring of a gateway reaches back as far."""
    least_requests: int = 20
    """Fewer say nothing about a load."""
    most_requests: int = 1_000
    """Of one play: its cost is counted in requests."""
    most_played: int = 30_000
    """Of all plays of a rehearsal; once it had so many no further layout is played."""
    shortest_seconds: float = 60.0
    longest_seconds: float = 600.0
    """Of the future that is played; the one and a third of the other bound the past."""
    sigmas: float = 2.0
    """A layout wins by more than so many standard errors of the difference,"""
    least_gain: float = 0.01
    """and by more than this share of the requests."""
    wrong_forecasts: int = 3
    """So many one after the other, and nothing is done by plays,"""
    right_forecasts: int = 5
    """until so many one after the other were right but for chance."""
    block_seconds: float = 10.0
    least_blocks: int = 8
    """Misses come in bursts: errors are taken over blocks of time."""
    stretch_seconds: float = 20.0
    """The newest part of the load, that older ones are compared with, lasts at least so long."""
    stretch_sigmas: float = 3.0
    stretch_change: float = 0.1
    """A load is another one when a mean differs by more than so many standard errors and this share."""
    most_of_role: int = 16
    """Workers of a role that are played as they are; more as a scale model, of four times as many in all."""
    more: float = 0.25
    """The same question is asked again once so much more is known: its answer would be the same before."""


TUNING: Final = Tuning()
