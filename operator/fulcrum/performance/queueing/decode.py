"""Decode workers with continuous batching: the share of requests whose time per output token stays inside the SLO."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np

from fulcrum.load.demand import Demand
from fulcrum.performance.queueing.batch import Batches, BatchLane, Context, batch_lane, batches, blocked, normal
from fulcrum.performance.queueing.lengths import Floats, log_spread
from fulcrum.performance.queueing.prefill import Stations

_CLASSES, _CLASS_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_CLASS_WEIGHTS = _CLASS_WEIGHTS / _CLASS_WEIGHTS.sum()
_WIDTH = 0.03
"""How far, as a share of the target, steps that are too slow on average still leave some requests inside."""


def decode_step(demand: Demand, stations: Stations) -> float:
    """Return the seconds of an average decode step at this load; infinite when the workers cannot keep up."""
    return _pool(demand, stations)[0].step


def decode_attainment(demand: Demand, stations: Stations, *, tpot_seconds: float, wait_seconds: float = 0.0) -> float:
    """Return the share of requests that find room in time and whose mean time per output token is inside the SLO.

    Room (a place in the batch and KV memory) must be there within `wait_seconds` of the hand-over.
    """
    pool, lanes = _pool(demand, stations)
    inside = tpot_inside(demand, pool, lanes, tpot_seconds=tpot_seconds)
    if wait_seconds <= 0.0 or inside <= 0.0 or pool.waiting <= 0.0:
        return inside
    # A request that waits starts on a pool that is full.
    full = max(lane.idle + lane.per_request * lane.room for lane in lanes)
    late = exp(-pool.spare_rate * wait_seconds)
    return inside + (pool.waiting * (1.0 - late) if full <= tpot_seconds else 0.0)


def decode_admitted(demand: Demand, stations: Stations, *, tpot_seconds: float, wait_seconds: float = 0.0) -> float:
    """Return the share of requests that can be let in so that no step gets longer than `tpot_seconds`.

    Where room ends before that, a request that is let in can wait for it as long as `wait_seconds`.
    """
    _, lanes = _pool(replace(demand, rate=0.0), stations)
    tokens = max(demand.osl_tokens, 1.0)
    return 1.0 - blocked(
        demand.rate,
        tokens,
        lanes,
        tpot_seconds=tpot_seconds,
        wait_seconds=wait_seconds,
        dispersion=demand.dispersion,
    )


def decode_wait(demand: Demand, stations: Stations, *, seconds: float = 0.0) -> float:
    """Return the probability that a request waits longer than `seconds` for a place in a batch and its KV memory."""
    pool, _ = _pool(demand, stations)
    return pool.waiting * exp(-pool.spare_rate * seconds) if seconds > 0.0 else pool.waiting


def _pool(demand: Demand, stations: Stations) -> tuple[Batches, list[BatchLane]]:
    context = Context.of(demand)
    lanes = [batch_lane(speed, workers, context) for speed, workers in stations if workers > 0]
    return batches(demand.rate, max(demand.osl_tokens, 1.0), lanes, context, dispersion=demand.dispersion), lanes


def tpot_inside(
    demand: Demand, pool: Batches, lanes: list[BatchLane], *, tpot_seconds: float, jitter: float = 0.0
) -> float:
    """Return the share of requests that find room and average at most `tpot_seconds` per token.

    A request averages over its own residence, in which the number of others moves: around its mean as an
    Ornstein-Uhlenbeck process that forgets at the rate (1 - elasticity) / residence, which leaves
    2 (x - 1 + e^-x) / x^2 of the variance for a residence of x times that. Short outputs see a moment, long ones the
    average. The contexts of the others are averaged in the same way. `jitter` is the variance (s^2) that a single
    step's other work adds, averaged over the tokens.
    """
    if pool.waiting >= 1.0 or tpot_seconds < min(lane.idle for lane in lanes):
        return 0.0
    sigma = log_spread(demand.osl_cv2)
    relative = np.exp(sigma * _CLASSES - sigma * sigma / 2)
    kept = np.sqrt(_averaged((1.0 - pool.elasticity) * relative))
    mean = float(pool.shares @ pool.steps) / (1.0 - pool.waiting)
    # Below the mean the threshold stays, so that the share falls with the load everywhere.
    threshold = np.where(tpot_seconds >= mean, mean + (tpot_seconds - mean) / kept, tpot_seconds)
    held = sum(lane.held(tpot_seconds) for lane in lanes)
    workers = sum(lane.workers for lane in lanes)
    per_context = max(lane.per_context for lane in lanes)
    others = per_context * per_context * Context.of(demand).variance * max(held / workers, 1.0)
    spread = others * _averaged(relative)
    distance = threshold[:, None] - pool.steps
    # States that are too slow: a fixed width, or heavier demand would get more of them inside by chance.
    steady = _WIDTH * tpot_seconds
    # Long contexts make steps long, so that more requests gather: two relaxations in a row, shared by the pool.
    e = pool.elasticity
    gathered = 1.0 + (2.0 * e / (2.0 - e) + e * e / ((1.0 - e) * (2.0 - e))) / workers
    moved = np.sqrt(spread * gathered + jitter / np.maximum(relative * demand.osl_tokens, 1.0))[:, None] + 1e-9
    inside = normal(distance / np.where(distance < 0.0, steady, moved)) @ pool.shares
    return min(max(float(_CLASS_WEIGHTS @ inside), 0.0), 1.0)


def _averaged(spans: Floats) -> Floats:
    """Return which part of the variance is left after averaging over a span, in times of the process' memory."""
    x = np.maximum(spans, 1e-4)
    left: Floats = 2.0 * (x - 1.0 + np.exp(-x)) / (x * x)
    return left
