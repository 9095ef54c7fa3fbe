"""A large cluster is played as a scale model: fewer workers of each role, and as much fewer requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.api.record import SPREAD
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a layout is played."""

    real: Layout
    played: Layout
    share: float
    """Of the workers, and of the requests."""

    def unscaled(self, layout: Layout) -> Layout:
        """Return the real layout that differs from what stands as `layout` does from what is played."""
        if self.played == self.real:
            return layout
        counts: dict[Role, dict[str, int]] = {role: {} for role in ROLES}
        for pool in self.real.pools:
            real, before, after = (each.in_pool(pool) for each in (self.real, self.played, layout))
            left = sum(real.values())
            for role in (Role.PREFILL, Role.DECODE):
                moved = (after.get(role, 0) - before.get(role, 0)) / self.share
                wanted = round(real.get(role, 0) + moved) if after.get(role, 0) else 0
                counts[role][pool] = min(max(wanted, int(role in after)), left)
                left -= counts[role][pool]
            # What is left over by rounding goes to the last role that there is.
            last = Role.MIXED if after.get(Role.MIXED, 0) else Role.DECODE if Role.DECODE in after else Role.PREFILL
            counts[last][pool] = counts[last].get(pool, 0) + left
        return Layout.of_roles(counts)


def scale_of(standing: Layout, most_share: float) -> Scale | None:
    """Return how to play a layout with at most such a share of its requests; None: it has no model that is like it.

    The smallest model with `TUNING.most_of_role` workers of a role or more, else the largest one with fewer, in which
    no role has so much another part of the workers that it would be another load to it.
    """
    counts = [count for role in ROLES for _, count in standing.of_role(role) if count]
    largest = max(counts, default=0)
    if not largest:
        return None
    most = min(largest, int(largest * most_share))
    if most_share >= 1 and largest <= TUNING.most_of_role:
        return Scale(real=standing, played=standing, share=1.0)
    least = min(TUNING.most_of_role, most)
    for size in (*range(least, most + 1), *range(least - 1, 0, -1)):
        played = Layout.of_roles(
            {role: {pool: _scaled(count, size, largest) for pool, count in standing.of_role(role)} for role in ROLES}
        )
        share = played.total / standing.total
        errors = [
            abs(few / (count * share) - 1)
            for role in ROLES
            for (_, few), (_, count) in zip(played.of_role(role), standing.of_role(role), strict=True)
        ]
        if share <= most_share and max(errors) <= TUNING.stretch_change and played.total <= 4 * TUNING.most_of_role:
            return Scale(real=standing, played=played, share=share)
    return None


def _scaled(count: int, size: int, largest: int) -> int:
    return max(1, round(count * size / largest)) if count else 0


def thinned(seen: Seen, share: float) -> Seen:
    """Return a share of the requests; those that have a prefix in common stay or go together."""
    if share >= 1:
        return seen
    draws = _group_of_each(seen) * np.uint64(SPREAD)  # wraps around
    return seen.at(draws < np.uint64(min(int(share * 2**64), 2**64 - 1)))


def _group_of_each(seen: Seen) -> NDArray[np.uint64]:
    """Return the first prefix of each prompt that is no common one, as a number; a number of its own without any."""
    ids, own = seen.load.prefix_ids, np.arange(1, len(seen) + 1, dtype=np.uint64)
    if ids is None:
        return own
    held = Counter(one for prompt in ids for one in set(prompt))
    most = ceil(len(seen) / TUNING.most_of_role)
    firsts = [next((one for one in prompt if 1 < held[one] <= most), None) for prompt in ids]
    groups = [number if one is None else one + len(seen) for number, one in zip(own.tolist(), firsts, strict=True)]
    return np.array(groups, dtype=np.uint64)
