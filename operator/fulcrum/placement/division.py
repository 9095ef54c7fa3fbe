"""How the misses that a promise allows are divided between first tokens and the tokens after them.

A request must be inside both promises, so the shares of prefill and decode multiply to the share of requests. Either
role may take most of the misses: which division carries most depends on the load and on the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

PARTS: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Parts of the misses (as exponents of the promised share) that prefill may take: ends of the intervals that `ceilings`
cover, the inner ones are searched. With the middle alone a role that can hardly be kept is lost."""


@dataclass(frozen=True, slots=True)
class Division:
    """The share that each role must keep alone, 0 to 1."""

    prefill: float
    decode: float
    ceiling: bool = False
    """Estimate what bounds a worker from above: among as many alike ones as there can be, beside idle ones of the other
    role, and decoding only what prefill lets in."""


def divisions(target: float) -> tuple[Division, ...]:
    """Return the divisions that a search tries for a promised share."""
    return tuple(Division(target**part, target ** (1.0 - part)) for part in PARTS[1:-1])


def ceilings(target: float) -> tuple[Division, ...]:
    """Return divisions of which one is at most as strict as any that there is: what all of them exceed is a bound."""
    return tuple(Division(target**after, target ** (1.0 - before), ceiling=True) for before, after in pairwise(PARTS))
