"""Layouts as a status says them: by ratio, and by pool where the ratio does not tell them apart."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from fulcrum.decide.assign import Assignment, layout_of_places
from fulcrum.decide.target import ratio_text
from fulcrum.performance.layout import Layout

_POOLS_CHARACTERS: Final = 70
"""Most characters that the pools of one layout take; the first pool is always said. `lastDecision.action` has room for
256 characters and says two layouts."""


def target_layout(assignment: Assignment) -> Layout:
    """Return the workers that are to be, by role and pool."""
    return layout_of_places((slot.pool, slot.role) for slot in assignment.slots)


def layout_texts(*layouts: Layout) -> tuple[str, ...]:
    """Return each layout as `3P:5D`.

    Different layouts of the same ratio are followed by the pools in which they differ: `4P:4D (a 4P:0D, b 0P:4D)`.
    """
    texts = []
    for layout in layouts:
        alike = [other for other in layouts if other.counts() == layout.counts()]
        texts.append(ratio_text(layout.counts()) + _pools_text(layout, alike))
    return tuple(texts)


def _pools_text(layout: Layout, alike: list[Layout]) -> str:
    names = sorted(frozenset[str]().union(*(other.pools for other in alike)))
    differ = [name for name in names if any(other.in_pool(name) != layout.in_pool(name) for other in alike)]
    if not differ:
        return ""
    said = [f"{name} {ratio_text(layout.in_pool(name))}" for name in differ]
    lengths = accumulate(len(each) + len(", ") for each in said)
    told = max(sum(length <= _POOLS_CHARACTERS for length in lengths), 1)
    more = [f"{len(said) - told} more"] if told < len(said) else []
    return f" ({', '.join([*said[:told], *more])})"
