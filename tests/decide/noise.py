"""Poisson traffic with spread lengths, as a gateway with a sliding window would measure it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from statistics import fmean, pvariance

from tests.decide.loads import speed
from tests.decide.world import START, World

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.measurements import Measurements
from fulcrum.load.traffic import Traffic
from fulcrum.rollout import SetRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    rate: float
    isl: float
    osl: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Flip:
    """Seconds since the start, and what flipped."""

    seconds: float
    name: str
    role: Role


def flips_under(
    spec: InferenceClusterSpec, phases: list[Phase], *, seed: int, tick: float = 2.0, window: float = 30.0
) -> list[Flip]:
    """Let a healthy cluster follow noisy load; returns the flips, those of its start left out."""
    random = Random(seed)
    world = World(spec)
    world.measurements = Measurements(speeds={pool.name: speed() for pool in spec.pools})
    world.settle()
    seen: deque[tuple[float, int, int]] = deque()
    flips: list[Flip] = []
    start, clock = world.now, 0.0
    arrival, phase_end = 0.0, 0.0
    for phase in phases:
        phase_end += phase.seconds
        arrival = max(arrival, clock)
        while clock < phase_end:
            clock += tick
            while (arrival := arrival + random.expovariate(phase.rate)) < clock:
                seen.append(
                    (arrival, 1 + int(random.expovariate(1 / phase.isl)), 1 + int(random.expovariate(1 / phase.osl)))
                )
            while seen and seen[0][0] < clock - window:
                seen.popleft()
            world.now = start + timedelta(seconds=clock)
            world.measurements = replace(world.measurements, traffic=measured(seen, window))
            for action in world.plan().actions:
                if isinstance(action, SetRole):
                    flips.append(Flip(clock, action.name, action.role))
                world.do(action)
    assert world.now >= START
    return flips


def measured(seen: deque[tuple[float, int, int]], window: float) -> Traffic:
    if not seen:
        return Traffic(window_seconds=window, rate=0.0)
    isl, osl = [prompt for _, prompt, _ in seen], [answer for _, _, answer in seen]
    return Traffic(
        window_seconds=window,
        rate=len(seen) / window,
        isl_tokens=fmean(isl),
        osl_tokens=fmean(osl),
        isl_cv2=pvariance(isl) / fmean(isl) ** 2,
        osl_cv2=pvariance(osl) / fmean(osl) ** 2,
    )
