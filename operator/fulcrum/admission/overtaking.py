"""What a request does to those of lower classes that wait where it is to go: engines serve them after it."""

from __future__ import annotations

from fulcrum.admission.learnt import Learnt
from fulcrum.admission.shares import ClassShares
from fulcrum.routing import ClusterView, Incoming, RequestLoad, Route

Overtaken = tuple[list[tuple[RequestLoad, float]], list[RequestLoad]]
"""Requests that are served later, with their new TTFT in seconds; and those that make way."""


def overtaken(
    incoming: Incoming, found: Route, view: ClusterView, learnt: Learnt, shares: ClassShares
) -> Overtaken | None:
    """Return which requests of lower classes are served later for it, and which make way.

    Those that would be late make way, and so room for those behind them. None: one would be late whose class would then
    have less than what is reserved for it.
    """
    later: list[tuple[RequestLoad, float]] = []
    victims: list[RequestLoad] = []
    rank = view.ranks[incoming.qos]
    worker = found.prefill
    if worker.prompts.lower_seconds(rank) <= 0:
        return later, victims
    promise = learnt.ttft_seconds
    more_seconds = found.work_seconds
    less_seconds = [0.0] * len(learnt.ttft_margins)
    for leg in worker.prompts.overtaken(rank):
        qos = leg.qos
        ttft_seconds = leg.ttft_seconds + more_seconds
        less = less_seconds[qos] + leg.work_seconds
        allowed = learnt.ttft_margins[qos].allowed_seconds(promise)
        if leg.batch:
            later.append((leg, ttft_seconds))
        elif leg.ttft_seconds <= allowed < ttft_seconds and shares.above_reserve(qos, view, less):
            less_seconds[qos] = less
            more_seconds = max(more_seconds - leg.work_seconds, 0.0)
            victims.append(leg)
        elif leg.ttft_seconds <= promise < ttft_seconds:
            return None
        else:
            later.append((leg, ttft_seconds))
    return later, victims
