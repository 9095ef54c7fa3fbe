"""Three days teach when load comes; on the fourth it comes an hour off, and workers run before its first request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import msgspec
import numpy as np
import pytest
from tests.decide.loads import measurements
from tests.decide.world import START, World, make_spec, pool

from fulcrum.api.names import Role
from fulcrum.decide.measurements import Callers
from fulcrum.decide.snapshot import served_roles
from fulcrum.forecast.recurrence import next_load_seconds
from fulcrum.forecast.series import LoadSeries

DAY = 86_400.0
STEP_SECONDS = 60
COLD_START_SECONDS = 480.0
"""From a new Pod to readiness: weights of 70B over a network disk."""
OPENS, CLOSES = 8.0, 20.0
"""Hours in which requests come, every two minutes."""


@dataclass
class Clock:
    """A cluster in memory, its callers and their history, minute by minute."""

    world: World
    minute: int = 0
    counts: list[float] = field(default_factory=list)
    """Requests of each minute."""
    asked_at: float | None = None
    held: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(arrival, wait) of each request that was held, in seconds."""
    _held_since: list[float] = field(default_factory=list)
    awake_minutes: set[int] = field(default_factory=set)

    def run(self, until: float, arrives: set[int], *, since: float = 0.0) -> None:
        """Run from `since`, the time at which the cluster is made; before, its gateways were only watched."""
        self.minute = round(since / STEP_SECONDS)
        self.counts = [float(minute in arrives) for minute in range(self.minute)]
        while self.minute * STEP_SECONDS < until:
            self._step(self.minute in arrives)
            self.minute += 1

    def _step(self, arrives: bool) -> None:
        now, world = self.minute * float(STEP_SECONDS), self.world
        world.now = START + timedelta(seconds=now)
        for name, worker in list(world.workers.items()):
            if worker.deleting:
                world.vanish(name)
            elif worker.created is not None and (world.now - worker.created).total_seconds() >= COLD_START_SECONDS:
                world.start(name)
                world.report_idle(name)
        serves = {Role.PREFILL, Role.DECODE} <= served_roles(world.workers.values())
        if serves:
            self.awake_minutes.add(self.minute)
            self.waits += [(at, now - at) for at in self._held_since]
            self._held_since.clear()
        if arrives:
            self.asked_at = now
            if not serves:
                self._held_since.append(now)
        self.counts.append(float(arrives))
        world.measurements = replace(
            measurements(arrives / STEP_SECONDS, 300.0, 50.0),
            start_seconds=COLD_START_SECONDS,
            callers=Callers(
                held=len(self._held_since),
                idle_seconds=None if self.asked_at is None else now - self.asked_at,
                quiet_seconds=now - (self.asked_at or 0.0),
            ),
            load_expected_seconds=self._expected(),
        )
        for action in world.plan().actions:
            world.do(action)

    def _expected(self) -> float | None:
        rate = np.array(self.counts[-3 * int(DAY / STEP_SECONDS) :]) / STEP_SECONDS
        nothing = np.full(len(rate), np.nan)
        history = LoadSeries(
            interval_seconds=float(STEP_SECONDS), end_seconds=0.0, rate=rate, isl_tokens=nothing, osl_tokens=nothing
        )
        return next_load_seconds(history, season_seconds=DAY)


def minutes(day: int, opens: float, closes: float) -> set[int]:
    first, last = (round((day * 24 + hour) * 60) for hour in (opens, closes))
    return set(range(first, last, 2))


@pytest.mark.parametrize("moved_hours", [-1.0, 0.0, 1.0])
def test_the_first_request_of_a_learnt_peak_finds_workers(moved_hours: float) -> None:
    spec = make_spec(pool(high=2), mode="Auto", slo={"ttft": "2s", "tpot": "50ms"})
    spec = msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, idle_after="10m"))
    clock = Clock(World(spec))
    arrives = set().union(*(minutes(day, OPENS, CLOSES) for day in range(3)))
    arrives |= minutes(3, OPENS + moved_hours, CLOSES + moved_hours)
    evening, first = round((2 * 24 + CLOSES) * 60), round((3 * 24 + OPENS + moved_hours) * 60)
    clock.run((first + 30) * 60.0, arrives, since=(evening - 60) * 60.0)
    night = range(evening, first)
    asleep = sum(minute not in clock.awake_minutes for minute in night) / len(night)
    held = [(at, wait) for at, wait in clock.waits if at >= evening * 60.0]
    print(f"moved by {moved_hours:+.0f} h: asleep {asleep:.0%} of the night, {len(held)} requests held")
    assert first in clock.awake_minutes, "the first request of the peak found no worker"
    assert not held
    assert asleep >= 0.8


def test_before_anything_was_learnt_the_first_request_waits_for_a_start() -> None:
    spec = make_spec(pool(high=2), mode="Auto", slo={"ttft": "2s", "tpot": "50ms"})
    spec = msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, idle_after="10m"))
    clock = Clock(World(spec))
    clock.run((OPENS + 1) * 3600.0, minutes(0, OPENS, CLOSES), since=(OPENS - 2) * 3600.0)
    assert clock.waits
    assert max(wait for _, wait in clock.waits) <= COLD_START_SECONDS + 2 * STEP_SECONDS
