"""Where KV flows: which share of what each pool prefills goes to which decode pool."""

from __future__ import annotations

from collections.abc import Iterable

from fulcrum.api.pool_types import overlap
from fulcrum.api.status import MAX_ROUTES
from fulcrum.api.types import KvRoute
from fulcrum.decide.tuning import TUNING
from fulcrum.load.demand import Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout


def kv_routes(layout: Layout, model: FluidModel, load: Load, last: Iterable[KvRoute]) -> tuple[KvRoute, ...]:
    """Return the maximum flow from prefill pools to decode pools: in proportion to what decode workers and links carry.

    Nothing where there is no choice. Routes of `last` stay while none differs clearly.
    """
    shares: dict[tuple[str, str], float] = {}
    for source, _ in layout.prefill:
        rates = {
            to: count * _carried(source, to, model, load)
            for to, count in layout.decode
            if overlap(model.admits.get(source), model.admits.get(to))
        }
        if len(rates) > 1 and any(rates.values()):
            shares |= {(source, to): round(rate / sum(rates.values()), 3) for to, rate in rates.items()}
    now = dict(list(shares.items())[:MAX_ROUTES])
    before = {(route.prefill, route.decode): route.share for route in last}
    if before.keys() == now.keys() and all(abs(now[pair] - before[pair]) < TUNING.route_change for pair in now):
        return tuple(last)
    return tuple(KvRoute(prefill=source, decode=to, share=share) for (source, to), share in now.items())


def _carried(source: str, to: str, model: FluidModel, load: Load) -> float:
    """Return the requests/s that a decode worker takes from `source`: none where KV takes longer than the promise."""
    cost, tokens = model.transfer(source, to), load.prefill.isl_tokens
    if cost.seconds(tokens) > model.slo.ttft_seconds:
        return 0.0
    busy_seconds = cost.seconds_per_token * tokens * (1 - load.prefill.prefix_hit)
    return min(model.unit_rates(to, load).decode, 1 / max(busy_seconds, 1e-9))
