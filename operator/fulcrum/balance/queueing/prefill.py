"""Prefill workers behind a least-loaded router: the share of requests whose first token comes in time."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, log, log1p, sqrt

import numpy as np

from fulcrum.balance.demand import Demand
from fulcrum.capacity.speed import WorkerSpeed

Stations = Sequence[tuple[WorkerSpeed, int]]
"""Pools of one role: (speed of one worker, number of workers)."""


def prefill_attainment(
    demand: Demand, stations: Stations, *, ttft_seconds: float, extra_seconds: float = 0.0
) -> float:
    """Return the share of requests whose wait + prefill + KV transfer + `extra_seconds` is at most `ttft_seconds`.

    `extra_seconds` is what comes on top of it: hand-over and first decode step. At rate 0 this is the best that any number
    of workers can do: prompts that take too long on an idle worker are outside.
    """
    total = sum(count for _, count in stations)
    if total <= 0:
        return 0.0
    sigma = sqrt(log1p(max(demand.isl_cv2, 0.0)))
    z = np.linspace(-4, 4, 65)
    weight = np.exp(-z * z / 2)
    weight /= weight.sum()
    lengths = demand.isl_tokens * np.exp(sigma * z - sigma * sigma / 2)
    speed = stations[0][0]
    service = np.asarray(speed.prefill_seconds(1.0, 0.0)) + 0 * lengths
    service = speed.coefficients.prefill_a + speed.coefficients.prefill_b * lengths * (1 - demand.prefix_hit) + (
        speed.coefficients.prefill_c * lengths**2 * (1 - demand.prefix_hit**2)
    )
    mean = float(weight @ service)
    load = demand.rate * mean / total
    if load >= 1.0:
        return 0.0
    room = ttft_seconds - extra_seconds - service - speed.transfer_base_seconds - speed.transfer_seconds_per_token * lengths
    second = float(weight @ service**2) / mean / 2
    busy = load ** sqrt(2 * (total + 1) - 1)
    tail = np.exp(-np.maximum(room, 0) * total * (1 - load) / second)
    return float(weight @ np.where(room >= 0, 1 - busy * tail, 0.0))
