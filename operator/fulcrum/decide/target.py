"""How many workers of each pool have which role, by a ratio and by what the pools allow; nothing is known of the load.

Mode Manual keeps to it; modes Auto and Observe begin with it. Which worker takes which role is `assign`'s part.
"""

from __future__ import annotations

from collections.abc import Mapping

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.pools import only_role
from fulcrum.performance.layout import ROLES, Layout


def ratio_text(counts: Mapping[Role, int]) -> str:
    """Return counts per role as `3P:5D`, with mixed workers last (`3P:5D:1M`, or `1M` alone)."""
    prefill, decode, mixed = (counts.get(role, 0) for role in ROLES)
    if mixed and not prefill and not decode:
        return f"{mixed}M"
    return f"{prefill}P:{decode}D" + (f":{mixed}M" if mixed else "")


def make_target(
    spec: InferenceClusterSpec,
    workers: Mapping[str, int] | None = None,
    there: Mapping[str, Mapping[Role, int]] | None = None,
) -> Layout:
    """Return prefill and decode workers in the proportion of `balance.ratio`, one of each at least where pools allow.

    Without a ratio half and half, prefill first. `workers` are those of each pool; None: as many as the ratio names,
    within the bounds of the spec, or all that there can be. One worker in all is `mixed` where its pool flips. Of the
    live workers that are `there`, by pool and role, the fewest flip.
    """
    ratio = spec.balance.ratio
    asked = {Role.PREFILL: ratio.prefill if ratio else 0, Role.DECODE: ratio.decode if ratio else 0}
    low = {pool.name: workers[pool.name] if workers is not None else pool.workers.min for pool in spec.pools}
    high = {pool.name: workers[pool.name] if workers is not None else pool.workers.max for pool in spec.pools}
    of_role: dict[Role | None, list[str]] = {role: [] for role in (*ROLES, None)}
    for pool in spec.pools:
        of_role[only_role(pool)].append(pool.name)
    (low_p, high_p), (low_d, high_d), (low_flexible, high_flexible) = (
        (sum(low[name] for name in of_role[role]), sum(high[name] for name in of_role[role]))
        for role in (Role.PREFILL, Role.DECODE, None)
    )

    highest = high_p + high_d + high_flexible
    total = _between(sum(asked.values()) or highest, low_p + low_d + low_flexible, highest)
    prefill = apportion(asked, total)[Role.PREFILL] if total > 1 else 0
    # What the pools that cannot flip leave open.
    prefill = _between(prefill, max(low_p, total - high_d - high_flexible), min(high_p + high_flexible, total - low_d))
    decode = total - prefill
    # Workers of the flexible pools: as many as can be, because a flip costs nothing and a start costs minutes.
    flexible = min(high_flexible, total - low_p - low_d)
    flexible_prefill = _between(
        int(flexible * (prefill / total if total else 0.0) + 0.5),
        max(0, prefill - high_p, flexible - (decode - low_d)),
        min(prefill - low_p, flexible - max(0, decode - high_d)),
    )

    counts = {Role.MIXED: {name: high[name] for name in of_role[Role.MIXED]}}
    counts[Role.PREFILL] = _spread(of_role[Role.PREFILL], prefill - flexible_prefill, low, high)
    counts[Role.DECODE] = _spread(of_role[Role.DECODE], decode - (flexible - flexible_prefill), low, high)
    divided = _spread(of_role[None], flexible, low, high)
    if total == 1 and flexible == 1:
        counts[Role.MIXED] |= divided
    else:
        prefilling = _fewest_flips(divided, flexible_prefill, there or {})
        counts[Role.PREFILL] |= prefilling
        counts[Role.DECODE] |= {name: count - prefilling[name] for name, count in divided.items()}
    return Layout.of_roles(counts)


def _spread(pools: list[str], total: int, low: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
    """Give each pool its least, then fill up in the order of the spec."""
    extra = total - sum(low[name] for name in pools)
    counts: dict[str, int] = {}
    for name in pools:
        counts[name] = min(low[name] + extra, high[name])
        extra -= counts[name] - low[name]
    return counts


def _fewest_flips(workers: Mapping[str, int], prefill: int, there: Mapping[str, Mapping[Role, int]]) -> dict[str, int]:
    """Divide `prefill` workers among pools that flip: what prefills does so on, then free places, then flips."""
    have = {name: there.get(name, {}) for name in workers}
    counts = {name: min(have[name].get(Role.PREFILL, 0), count) for name, count in workers.items()}
    left = prefill - sum(counts.values())
    for name, count in workers.items():
        decoding = min(have[name].get(Role.DECODE, 0), count)
        more = _between(left, 0, max(count - counts[name] - decoding, 0))
        counts[name] += more
        left -= more
    for name in reversed(list(workers)):
        more = _between(left, -counts[name], workers[name] - counts[name])
        counts[name] += more
        left -= more
    return counts


def apportion(counts: Mapping[Role, int], total: int) -> dict[Role, int]:
    """Return counts with the sum `total` in the proportion of `counts` (largest remainder).

    Each role that asks for a worker gets one where there are enough. Where none asks, all get alike.
    """
    if not counts or sum(counts.values()) == total:
        return dict(counts)
    weights = {role: count for role, count in counts.items() if count} or dict.fromkeys(counts, 1)
    quotas = {role: total * weight / sum(weights.values()) for role, weight in weights.items()}
    shares = {role: int(quota) for role, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda role: (shares[role] - quotas[role], ROLES.index(role)))
    for role in by_remainder[: total - sum(shares.values())]:
        shares[role] += 1
    if total >= len(shares):
        for role in [role for role, share in shares.items() if share == 0]:
            shares[max(shares, key=lambda each: shares[each])] -= 1
            shares[role] = 1
    return {role: shares.get(role, 0) for role in counts}


def _between(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
