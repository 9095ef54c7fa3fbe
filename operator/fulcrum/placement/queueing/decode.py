"""Decode workers with continuous batching: the share of requests whose time per output token stays inside the SLO.

KV comes from a prefill worker's link over a decode worker's, on each one prompt after the other: links are a queue
before the batch, and what is on its way takes KV memory already.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, exp, inf, log
from statistics import NormalDist

import numpy as np

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.performance.eligible import log_spread
from fulcrum.performance.rates import pull_seconds
from fulcrum.placement.queueing.batch import Batches, BatchGroup, Context, batch_group, batches, blocked, normal
from fulcrum.placement.queueing.lengths import Floats, length_points
from fulcrum.placement.queueing.prefill import Stations
from fulcrum.placement.queueing.tuning import TUNING
from fulcrum.placement.queueing.waiting import Service, turned_away, waiting


def decode_step(demand: Demand, stations: Stations) -> float:
    """Return the seconds of an average decode step at this load; infinite when the workers cannot keep up."""
    return _pool(demand, tuple(stations))[0].step


def decode_attainment(
    demand: Demand, stations: Stations, *, tpot_seconds: float, wait_seconds: float = 0.0, senders: float = inf
) -> float:
    """Return the share of requests that find room in time and whose mean time per output token is inside the SLO.

    Room (a turn on the links, a place in the batch, KV memory) must be there within `wait_seconds` of the hand-over.
    `senders` is the number of prefill workers that KV comes from; of one that also sends elsewhere, a part.
    """
    pool, groups = _pool(demand, tuple(stations))
    inside = tpot_inside(demand, pool, groups, tpot_seconds=tpot_seconds, wait_seconds=wait_seconds)
    # Weighted sums may come out a rounding error above 1.
    return min(inside * _pulled(demand, stations, wait_seconds, senders, early=False), 1.0)


def decode_admitted(
    demand: Demand, stations: Stations, *, tpot_seconds: float, wait_seconds: float = 0.0, senders: float = inf
) -> float:
    """Return the share of requests that can be let in so that no step gets longer than `tpot_seconds`.

    Where room ends before that, a request that is let in can wait for it as long as `wait_seconds`; `senders` as for
    `decode_attainment`.
    """
    pulled = _pulled(demand, stations, wait_seconds, senders, early=True)
    return pulled - pulled * blocked(
        demand.rate * pulled,
        max(demand.osl_tokens, 1.0),
        _groups(demand, stations, Context.of(demand)),
        tpot_seconds=tpot_seconds,
        wait_seconds=wait_seconds,
        dispersion=demand.dispersion,
    )


def _pulled(demand: Demand, stations: Stations, wait_seconds: float, senders: float, *, early: bool) -> float:
    """Return the share of prompts whose turn on the links comes within `wait_seconds` of their prefill.

    The end with fewer workers sets how many are moved at a time. `early`: what would be late is turned away at arrival.
    Prefill lets prompts out one by one, however they came.
    """
    workers = sum(count for _, count in stations)
    mean = sum(count * pull_seconds(demand, speed) for speed, count in stations) / max(workers, 1)
    if mean <= 0.0:
        return 1.0
    at_once = max(min(float(workers), senders), TUNING.least_share)
    links = ceil(at_once)
    rate = demand.rate * links / at_once  # a link in part is busy as a whole one with as many more prompts
    let_in = min(1.0, TUNING.most_load * links / max(rate * mean, 1e-9)) if early else 1.0
    service = Service(constant=0.0, own=mean, cv2=max(demand.isl_cv2, 0.0), most_sharing=1.0, held_up=1.0)
    queue = waiting(rate * let_in, links, service)
    lengths, weights = length_points(mean, demand.isl_cv2)
    missed = queue.missed(np.full(1, wait_seconds), lengths, weights)
    return let_in * float(1.0 - (turned_away(missed, queue.load) if early else missed)[0])


@lru_cache(maxsize=8)
def _pool(demand: Demand, stations: tuple[tuple[WorkerSpeed, int], ...]) -> tuple[Batches, list[BatchGroup]]:
    """Return the state of the workers: the step, the share in time and the wait are read from the same one."""
    context = Context.of(demand)
    groups = _groups(demand, stations, context)
    return batches(demand.rate, max(demand.osl_tokens, 1.0), groups, context, dispersion=demand.dispersion), groups


def _groups(demand: Demand, stations: Stations, context: Context) -> list[BatchGroup]:
    """Return the pools, without the KV memory of what is on its way to them (Little: rate times time).

    Memory that holds a request holds it on its way as it does afterwards.
    """
    each = demand.rate / max(sum(count for _, count in stations), 1)
    groups = []
    for speed, workers in stations:
        if workers > 0:
            group = batch_group(speed, workers, context)
            coming = min(each * pull_seconds(demand, speed), 1.0) * context.prompt / max(context.mean, 1.0)
            room = max(group.room - coming, min(group.room, 1.0))
            taken = (group.room - room) * context.mean
            groups.append(replace(group.cut(room), kv_tokens=group.kv_tokens - taken))
    return groups


def tpot_inside(
    demand: Demand,
    pool: Batches,
    groups: list[BatchGroup],
    *,
    tpot_seconds: float,
    wait_seconds: float,
    jitter: float = 0.0,
) -> float:
    """Return the share of requests that find room within `wait_seconds` and average at most `tpot_seconds` per token.

    A request averages over its own residence, in which the number of others moves: around its mean as an
    Ornstein-Uhlenbeck process that forgets at the rate (1 - elasticity) / residence, which leaves
    2 (x - 1 + e^-x) / x^2 of the variance for a residence of x times that. Short outputs see a moment, long ones the
    average. The contexts of the others are averaged in the same way. `jitter` is the variance (s^2) that a single
    step's other work adds, averaged over the tokens.
    """
    if pool.waiting >= 1.0:
        return 0.0
    # A request that waits starts on a pool that is full.
    full = max(group.steps[-1] for group in groups)
    steps = np.append(pool.steps, full)
    found = 1.0 - exp(-pool.spare_rate * wait_seconds) if wait_seconds > 0.0 else 0.0
    shares = np.append(pool.shares, pool.waiting * found)
    sigma = log_spread(demand.osl_cv2)
    single = _of_one_token(demand.osl_tokens, sigma)
    if tpot_seconds < min(group.idle for group in groups):
        return single * float(shares.sum())
    relative, weights = length_points(1.0, demand.osl_cv2)
    kept = np.sqrt(_averaged((1.0 - pool.elasticity) * relative))
    mean = float(pool.shares @ pool.steps) / (1.0 - pool.waiting)
    # Below the mean the threshold stays, so that the share falls with the load everywhere.
    threshold = np.where(tpot_seconds >= mean, mean + (tpot_seconds - mean) / kept, tpot_seconds)
    held = sum(group.held(tpot_seconds) for group in groups)
    workers = sum(group.workers for group in groups)
    per_context = max(group.per_context for group in groups)
    others = per_context * per_context * Context.of(demand).variance * max(held / workers, 1.0)
    spread = others * _averaged(relative)
    distance = threshold[:, None] - steps
    # States that are too slow: a fixed width, or heavier demand would get more of them inside by chance.
    steady = TUNING.precision * tpot_seconds
    # Long contexts make steps long, so that more requests gather: two relaxations in a row, shared by the pool.
    e = pool.elasticity
    gathered = 1.0 + (2.0 * e / (2.0 - e) + e * e / ((1.0 - e) * (2.0 - e))) / workers
    moved = np.sqrt(spread * gathered + jitter / np.maximum(relative * demand.osl_tokens, 1.0))[:, None] + 1e-9
    inside = normal(distance / np.where(distance < 0.0, steady, moved)) @ shares
    return min(max((1.0 - single) * float(weights @ inside) + single * float(shares.sum()), 0.0), 1.0)


def _of_one_token(osl_tokens: float, sigma: float) -> float:
    """Return the share of answers of one token, which have no pace: they round to less than two."""
    return NormalDist().cdf((log(1.5 / max(osl_tokens, 1.0)) + sigma * sigma / 2) / max(sigma, 1e-9))


def _averaged(spans: Floats) -> Floats:
    """Return which part of the variance is left after averaging over a span, in times of the process' memory."""
    x = np.maximum(spans, 1e-4)
    left: Floats = 2.0 * (x - 1.0 + np.exp(-x)) / (x * x)
    return left
