"""Prompts whose prefill takes nearly all of the TTFT promise are in time where they decode on their prefill worker."""

from __future__ import annotations

import numpy as np
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.workload import Workload

LONG_TOKENS = 8_800
SPEED = make_speed(decode=(0.014, 1e-4, 5e-8))
"""The long prompt takes 0.44 s of a promise of 0.5 s, and decode workers some 0.06 s more to send the first token."""
SECONDS = 900.0


def workload(*, rate: float, seed: int) -> Workload:
    """Chat; one prompt in a hundred is long."""
    random = np.random.default_rng(seed)
    count = int(rate * SECONDS)
    long = random.random(count) < 0.01
    return Workload(
        arrival_seconds=np.sort(random.random(count)) * SECONDS,
        prompt_tokens=np.where(long, LONG_TOKENS, 1 + random.exponential(1000, count).clip(max=4000)).astype(np.int32),
        output_tokens=(2 + random.exponential(200, count)).astype(np.int32),
        qos_class=np.zeros(count, dtype=np.int16),
    )


def test_long_prompts_are_served_in_time_on_busy_workers() -> None:
    """Prefill workers are used two thirds of their time."""
    load = workload(rate=60.0, seed=3)
    result = simulate(load, make_cluster(SPEED), StaticSplit(pool="p", prefill=5, decode=4), slo=SLO)
    inside = result.within(SLO)
    long = load.prompt_tokens == LONG_TOKENS
    assert inside[long].mean() > 0.75
    assert inside[~long].mean() > 0.998
