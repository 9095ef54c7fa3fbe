"""Which layouts are worth a play: what stands and its neighbours, the fluid optimum and its neighbours, all mixed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.performance.layout import ROLES, Layout

Prefilling = tuple[int, ...]
"""Prefill workers of each pool; the others decode."""

MOST_PRODUCT: Final = 4
"""Pools of which each combination is played that has every pool in one role: there are two to the power of it."""


def candidates(
    standing: Layout,
    speeds: Mapping[str, WorkerSpeed],
    prompts: NDArray[np.float64],
    outputs: NDArray[np.float64],
    tpot_seconds: float,
    *,
    flexible: Collection[str],
    mixes: bool = True,
) -> list[Layout]:
    """Return about a dozen layouts of the same workers, without the one that stands.

    `prompts`, `outputs`: tokens of the requests that are expected. `flexible`: pools whose workers change their roles;
    with `mixes` they may do both.
    """
    sizes = {
        pool: sum(standing.in_pool(pool).values()) for pool in sorted(standing.pools & speeds.keys() & set(flexible))
    }
    stands = dict(standing.prefill)
    splits: list[Prefilling] = []
    if not any(pool in sizes for pool, _ in standing.mixed):
        splits += _near(tuple(stands.get(pool, 0) for pool in sizes), sizes)
    seconds = {
        pool: _seconds(speeds[pool], prompts, outputs, tpot_seconds) for pool in standing.pools if pool in speeds
    }
    best = _fluid_optimum(standing, sizes, seconds)
    splits += (best, *_near(best, sizes))
    if len(sizes) <= MOST_PRODUCT:
        splits += product(*((0, size) for size in sizes.values()))  # each pool as a whole
    found = [_layout(standing, dict(zip(sizes, split, strict=True)), sizes) for split in splits]
    if mixes and len(sizes) == len(standing.pools):
        found.append(Layout.of(mixed=sizes))
    # One worker of each role cannot swap: a role would be without any.
    swaps = standing.total == 2 and not standing.mixed
    return [
        layout
        for layout in dict.fromkeys(found)
        if layout.complete and layout != standing and (layout.mixed or not swaps)
    ]


def _layout(standing: Layout, prefilling: Mapping[str, int], sizes: Mapping[str, int]) -> Layout:
    """Return what stands, but for the pools of `sizes`."""
    counts = {role: {pool: count for pool, count in standing.of_role(role) if pool not in sizes} for role in ROLES}
    counts[Role.PREFILL] |= prefilling
    counts[Role.DECODE] |= {pool: size - prefilling[pool] for pool, size in sizes.items()}
    return Layout.of_roles(counts)


def _near(split: Prefilling, sizes: Mapping[str, int]) -> Iterator[Prefilling]:
    """Yield splits that are one worker of one pool away, two, and a quarter of all, and those with one of a role.

    In an overload one worker of either role can be better than all that is between.
    """
    for place, size in enumerate(sizes.values()):
        steps = sorted({1, 2, max(2, sum(sizes.values()) // 4)})
        near = (moved for step in steps for moved in (split[place] + step, split[place] - step))
        for moved in (*near, 1, size - 1):
            if 0 <= moved <= size:
                yield (*split[:place], moved, *split[place + 1 :])


def _fluid_optimum(
    standing: Layout, sizes: Mapping[str, int], seconds: Mapping[str, tuple[float, float]]
) -> Prefilling:
    """Return the split whose scarcer role carries the most requests per second, were work a fluid.

    `seconds`: a worker's prefill and decode of the mean request, by pool. For each number of decode workers those of
    the pools decode that give up least prefill by it.
    """
    fixed_prefill, fixed_decode = (
        sum(count / seconds[pool][at] for pool, count in workers if pool in seconds and pool not in sizes)
        for at, workers in enumerate((standing.prefill, standing.decode))
    )
    order = sorted(sizes, key=lambda pool: seconds[pool][0] / seconds[pool][1])  # good at prefill first
    split = dict.fromkeys(sizes, 0)
    best, best_rate = tuple(split.values()), -1.0
    for pool in order:
        for _ in range(sizes[pool]):
            split[pool] += 1
            prefill = fixed_prefill + sum(count / seconds[each][0] for each, count in split.items())
            decode = fixed_decode + sum((sizes[each] - count) / seconds[each][1] for each, count in split.items())
            if min(prefill, decode) > best_rate:
                best, best_rate = tuple(split.values()), min(prefill, decode)
    return best


def _seconds(
    speed: WorkerSpeed, prompts: NDArray[np.float64], outputs: NDArray[np.float64], tpot_seconds: float
) -> tuple[float, float]:
    """Return a worker's seconds of prefill, and of decode, for the mean request."""
    prefill = float(np.mean([speed.prefill_seconds(tokens, tokens**2) for tokens in prompts.tolist()]))
    gaps = np.maximum(outputs - 1, 0)
    if not gaps.any():
        return prefill, 1e-9
    context = float((gaps * (prompts + outputs / 2)).sum() / gaps.sum())
    batch = max(1.0, min(speed.decode_batch(tpot_seconds, context), speed.kv_capacity_tokens / context))
    return prefill, float(gaps.mean()) * speed.decode_step_seconds(batch, batch * context) / batch
