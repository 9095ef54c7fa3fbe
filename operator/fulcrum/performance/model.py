"""What a layout of workers does for a load: attainment, goodput, and the plain rates that searches start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, Load, Slo
from fulcrum.performance.layout import Layout, PoolCounts
from fulcrum.performance.queueing import (
    decode_admitted,
    decode_attainment,
    decode_step,
    mixed_admitted,
    mixed_attainment,
    prefill_attainment,
)
from fulcrum.performance.queueing.prefill import Stations
from fulcrum.performance.rates import UnitRates
from fulcrum.performance.shares import Shares

STRETCH: Final = 1.5
"""Step by which a promise that not even an idle worker can keep is widened until one can."""
STRETCH_STEPS: Final = 24
USUAL_ADMITTED: Final = 0.7
"""Workers keep the promise up to about this part of what they carry without any waiting: where the search begins."""
MIXED_CHOSEN: Final = 0.6
"""How far mixed workers are from letting requests in by chance (0) on the way to the most that keeps every step in time
(1). Simulated random clusters say 0.65 to 0.75 (`benchmarks/layouts.py`, seeds 7301 and 8101); from 0.65 on layouts
follow noise (`tests/balance/test_noise.py`)."""
_NEARLY_ALL: Final = 0.95
"""Share let in for one role above which the other one need not be looked at again."""
ADMITTED_STEPS: Final = 4
"""Halvings in the search for the share of an overload that can be served: 2 % before interpolation."""


class PerformanceModel:
    """Estimates for one set of speeds and one promise; remembers what it has computed within one plan."""

    def __init__(
        self,
        speeds: Mapping[str, WorkerSpeed],
        slo: Slo,
        *,
        turns_away: bool = True,
        admits: Mapping[str, PoolAdmits] | None = None,
    ) -> None:
        """`turns_away`: the gateway turns away requests that would be late, so that others are not.

        `admits` of the pools that do not take every request.
        """
        self.admits: Mapping[str, PoolAdmits] = admits or {}
        self._shares = Shares(speeds, slo, self.admits)
        self._turns_away = turns_away
        self._speeds = speeds
        self.slo = slo
        self._summed: dict[tuple[object, ...], float] = {}
        self._steps: dict[tuple[PoolCounts, Demand], float] = {}
        self._patience: dict[tuple[float, float, float], float] = {}
        self.known_splits: dict[tuple[PoolCounts, Load], tuple[Layout, ...]] = {}
        """Kept for `split`, by workers per pool and load."""
        self._rates: dict[tuple[object, ...], UnitRates] = {}

    def knows(self, pool: str) -> bool:
        """Report whether the speed of the pool's workers is known."""
        return pool in self._speeds

    def attainment(self, layout: Layout, load: Load) -> float:
        """Return the share of requests inside the SLO, 0 to 1."""
        if not layout.complete:
            return 0.0
        apart = self._shares.mixed_apart(layout, load, self.cover)
        return sum(share * self._attained(side, part) for share, side, part in apart)

    def _attained(self, layout: Layout, load: Load) -> float:
        share = self._mixed_share(layout, load)
        split = self._disaggregated(layout, load.scaled(1 - share) if share else load) if share < 1 else 0.0
        both = self._mixed(_both_kept, layout, load.scaled(share) if share < 1 else load) if share else 0.0
        return share * both + (1 - share) * split

    def goodput(self, layout: Layout, load: Load) -> float:
        """Return requests/s inside the SLO when as many are admitted as can be served within the promise.

        Where no request is turned away it is half of that, and half of what is inside the SLO of a load that lasts:
        then queues grow until all are late, sooner or later.
        """
        if load.rate <= 0 or not layout.complete:
            return 0.0
        whole = self.attainment(layout, load)
        admitted = whole
        if not layout.mixed:
            # Where batches are small, to wait for a place in one counts as turned away: there all may be in time.
            admitted = max(whole, self._admitted(layout, load))
        elif whole < self.slo.attainment:
            cautious = self.admissible(layout, load) * self.slo.attainment
            if not layout.prefill and not layout.decode:
                cautious += MIXED_CHOSEN * (self._mixed(mixed_admitted, layout, load) - cautious)
            admitted = max(whole, cautious)
        return load.rate * (admitted if self._turns_away else (admitted + whole) / 2)

    def admissible(self, layout: Layout, load: Load) -> float:
        """Return the largest share of the load for which the promise is kept, 0 to 1."""
        target = self.slo.attainment
        high, above = 1.0, self.attainment(layout, load)
        if above >= target:
            return high
        low, below = 0.0, 1.0
        first = min(self.cover(layout, load), 1.0)
        for step in range(2 + ADMITTED_STEPS):
            middle = (first, first * USUAL_ADMITTED)[step] if step < 2 else (low + high) / 2
            if not low < middle < high:
                continue
            value = self.attainment(layout, load.scaled(middle))
            if value >= target:
                low, below = middle, value
            else:
                high, above = middle, value
        # Interpolated, so that layouts that are close differ by what they are and not by steps of the search.
        return low + (high - low) * (below - target) / max(below - above, 1e-9) if low > 0 else 0.0

    def cover(self, layout: Layout, load: Load) -> float:
        """Return how many times over the workers could carry the load without any waiting."""
        both = sum(count * self.unit_rates(pool, load).mixed for pool, count in layout.mixed)
        split = min(self.role_rate(layout, load, Role.PREFILL), self.role_rate(layout, load, Role.DECODE))
        return (both + split) / max(load.rate, 1e-9)

    def role_rate(self, layout: Layout, load: Load, role: Role) -> float:
        """Return the requests/s that the workers of prefill or decode carry without any waiting."""
        rates = [(count, self.unit_rates(pool, load)) for pool, count in layout.of_role(role)]
        every = sum(count * rate.of_role(role) for count, rate in rates if rate.share == 1.0)
        # A pool that takes only some requests helps as far as these come beside those that the others carry.
        some = [(count * rate.of_role(role), rate.share) for count, rate in rates if rate.share < 1.0]
        return every + sum(min(rate, every * share / (1.0 - share)) if every else rate for rate, share in some)

    def unit_rates(self, pool: str, load: Load) -> UnitRates:
        """Return what one worker of the pool carries at full load: the fluid limit, where searches start."""
        prompt, answer = load.prefill, load.decode
        key: tuple[object, ...] = (
            pool,
            prompt.isl_tokens,
            prompt.isl_cv2,
            prompt.prefix_hit,
            answer.isl_tokens,
            answer.osl_tokens,
            answer.osl_cv2,
            prompt.classes,
        )
        if key not in self._rates:
            self._rates[key] = self._shares.rates(pool, load)
        return self._rates[key]

    def residence_seconds(self, role: Role, layout: Layout, load: Load) -> float:
        """Return how long a worker of `role` still has its old work: the mean time of a request on it."""
        if role is Role.PREFILL:
            return max((1 / self.unit_rates(pool, load).prefill for pool, _ in layout.prefill), default=0.0)
        step = self._step(load.decode, layout.of_role(role))
        # Steps beyond the promise do not last: requests are late then, and admission or the next flip ends it.
        return load.decode.osl_tokens * min(step, self.slo.tpot_seconds)

    def _disaggregated(self, layout: Layout, load: Load) -> float:
        step = self._step(load.decode, layout.decode)
        decoded = self._decoded(decode_attainment, layout, load.decode, load) if step < inf else 0.0
        return decoded and decoded * self._prefilled(layout, load.prefill, step, early=False)

    def _admitted(self, layout: Layout, load: Load) -> float:
        """Return the share inside the SLO of a split when those that would be late are turned away at arrival.

        A request that is turned away for one role is no work for the other: each sees what the other lets in.
        """
        decoded = self._decoded(decode_admitted, layout, load.decode, load)
        step = min(self._step(load.decode, layout.decode), self.slo.tpot_seconds)
        demand = load.prefill if decoded > _NEARLY_ALL else replace(load.prefill, rate=load.prefill.rate * decoded)
        prefilled = self._prefilled(layout, demand, step, early=True)
        if decoded <= _NEARLY_ALL and prefilled <= _NEARLY_ALL:
            fewer = replace(load.decode, rate=load.decode.rate * prefilled)
            decoded = self._decoded(decode_admitted, layout, fewer, load)
        return prefilled * decoded

    def _prefilled(self, layout: Layout, demand: Demand, step_seconds: float, *, early: bool) -> float:
        """Return the share with its first token in time; `early` as for `prefill_attainment`."""
        promise = {"ttft_seconds": self.slo.ttft_seconds, "extra_seconds": step_seconds, "early": early}
        return self._sum(prefill_attainment, Role.PREFILL, demand, layout, promise)

    def _decoded(self, estimate: Callable[..., float], layout: Layout, demand: Demand, load: Load) -> float:
        """Return the share that decode workers serve, or let in, of `demand`, which is the decode side of `load`."""
        promise = {"tpot_seconds": self.slo.tpot_seconds, "wait_seconds": self._patience_seconds(load)}
        return self._sum(estimate, Role.DECODE, demand, layout, promise)

    def _mixed(self, estimate: Callable[..., float], layout: Layout, load: Load) -> float:
        """Return the share that mixed workers serve, or let in."""
        promise = {
            "ttft_seconds": self.slo.ttft_seconds,
            "tpot_seconds": self.slo.tpot_seconds,
            "wait_seconds": self._patience_seconds(load),
        }
        return self._sum(estimate, Role.MIXED, _heavier(load), layout, promise)

    def _sum(
        self,
        estimate: Callable[..., float],
        role: Role,
        demand: Demand,
        layout: Layout,
        promise: Mapping[str, float],
    ) -> float:
        """Return an estimate over the pools of a role."""
        pools = layout.of_role(role)
        key = (estimate, pools, demand, *promise.values())
        known = self._summed.get(key)
        if known is None:
            known = self._summed[key] = self._shares.summed(role, demand, pools, partial(estimate, **promise))
        return known

    def _step(self, demand: Demand, decode: PoolCounts) -> float:
        known = self._steps.get((decode, demand))
        if known is None:
            known = self._steps[decode, demand] = self._shares.step(demand, decode)
        return known

    def _patience_seconds(self, load: Load) -> float:
        """Return how long a request may wait for a place in a decode batch, which is a part of its TTFT.

        Half of what the promise leaves beyond the work itself on an idle worker; the other half is for the prefill.
        """
        prompt, answer = load.prefill, load.decode
        key = (prompt.isl_tokens, prompt.prefix_hit, answer.isl_tokens)
        known = self._patience.get(key)
        if known is None:
            fresh = prompt.isl_tokens * (1 - prompt.prefix_hit)
            squared = prompt.isl_tokens**2 * (1 - prompt.prefix_hit**2)
            work = min(
                speed.prefill_seconds(fresh, squared) + speed.decode_step_seconds(1.0, answer.isl_tokens)
                for speed in self._speeds.values()
            )
            known = self._patience[key] = max(0.0, self.slo.ttft_seconds - work) / 2
        return known

    def _mixed_share(self, layout: Layout, load: Load) -> float:
        """Requests go where there is room: in proportion to what each side carries at most."""
        if not layout.mixed:
            return 0.0
        if not (layout.prefill and layout.decode):
            return 1.0
        both = sum(count * self.unit_rates(pool, load).mixed for pool, count in layout.mixed)
        split = min(self.role_rate(layout, load, role) for role in (Role.PREFILL, Role.DECODE))
        return both / (both + split)


def _both_kept(demand: Demand, stations: Stations, **promise: float) -> float:
    """Return the share of requests that mixed workers serve inside both promises."""
    return mixed_attainment(demand, stations, **promise).joint


def _heavier(load: Load) -> Demand:
    """Return what one worker has to do that does both: the higher rate counts for both."""
    longer = max(load.prefill, load.decode, key=lambda demand: demand.rate)
    return replace(longer, isl_tokens=load.prefill.isl_tokens, osl_tokens=load.decode.osl_tokens)


def reachable(speeds: Mapping[str, WorkerSpeed], slo: Slo, load: Load) -> Slo:
    """Return the promise, each part widened until an idle worker of the fastest pool keeps it.

    Beyond what the hardware can do every layout would look equally bad; with the nearest promise that can be kept, the
    best layout is still the one that is least late.
    """
    ttft, tpot = slo.ttft_seconds, slo.tpot_seconds
    idle_prompt, idle_answer = replace(load.prefill, rate=0.0), replace(load.decode, rate=0.0)
    stations = [[(speed, 1)] for speed in speeds.values()]
    part = slo.attainment**0.5
    for _ in range(STRETCH_STEPS):
        if any(decode_attainment(idle_answer, station, tpot_seconds=tpot) >= part for station in stations):
            break
        tpot *= STRETCH
    step = min((decode_step(idle_answer, station) for station in stations), default=0.0)
    for _ in range(STRETCH_STEPS):
        if any(
            prefill_attainment(idle_prompt, station, ttft_seconds=ttft, extra_seconds=step) >= part
            for station in stations
        ):
            break
        ttft *= STRETCH
    return Slo(ttft_seconds=ttft, tpot_seconds=tpot, attainment=slo.attainment)
