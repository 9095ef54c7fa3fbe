"""Decode workers with continuous batching: the share of requests whose time per output token stays inside the SLO."""

from __future__ import annotations

from math import erfc, inf, sqrt

from fulcrum.balance.demand import Demand
from fulcrum.balance.queueing.prefill import Stations


def decode_step(demand: Demand, stations: Stations) -> float:
    """Return the seconds of an average decode step at this load; infinite when the workers cannot keep up."""
    total = sum(count for _, count in stations)
    if total <= 0:
        return inf
    k = stations[0][0].coefficients
    context = demand.isl_tokens + demand.osl_tokens * (1 + demand.osl_cv2) / 2
    load = demand.rate / total * demand.osl_tokens * (k.decode_b + k.decode_c * context)
    return k.decode_a / (1 - load) if load < 1 else inf


def decode_attainment(demand: Demand, stations: Stations, *, tpot_seconds: float) -> float:
    """Return the share of requests that find room at once and whose mean time per output token is at most `tpot_seconds`."""
    step = decode_step(demand, stations)
    if step == inf:
        return 0.0
    return 0.5 * erfc(-(tpot_seconds - step) / (0.1 * step) / sqrt(2))


def decode_wait(demand: Demand, stations: Stations, *, seconds: float = 0.0) -> float:
    """Return the probability that a request waits longer than `seconds` for a place in a batch and its KV memory."""
    return 0.0 if decode_step(demand, stations) < inf else 1.0
