"""What a layout of workers does for a load: attainment, goodput, and the plain rates that searches start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from fulcrum.api.names import Role
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
from fulcrum.performance.rates import UnitRates, unit_rates

STRETCH: Final = 1.5
"""Step by which a promise that not even an idle worker can keep is widened until one can."""
STRETCH_STEPS: Final = 24
USUAL_ADMITTED: Final = 0.7
"""Workers keep the promise up to about this part of what they carry without any waiting: where the search begins."""
_NEARLY_ALL: Final = 0.95
"""Share let in for one role above which the other one need not be looked at again."""
ADMITTED_STEPS: Final = 4
"""Halvings in the search for the share of an overload that can be served: 2 % before interpolation."""


class PerformanceModel:
    """Estimates for one set of speeds and one promise; remembers what it has computed within one plan."""

    def __init__(self, speeds: Mapping[str, WorkerSpeed], slo: Slo, *, turns_away: bool = True) -> None:
        """`turns_away`: the gateway turns away requests that would be late, so that others are not."""
        self._turns_away = turns_away
        self._speeds = speeds
        self.slo = slo
        self._prefill: dict[tuple[PoolCounts, Demand, float, bool], float] = {}
        self._decode: dict[tuple[PoolCounts, Demand, float], tuple[float, float]] = {}
        self._let_in: dict[tuple[PoolCounts, Demand, float], float] = {}
        self._patience: dict[tuple[float, float, float], float] = {}
        self.known_splits: dict[tuple[PoolCounts, Load], tuple[Layout, ...]] = {}
        """Kept for `split`, by workers per pool and load."""
        self._rates: dict[tuple[str | float, ...], UnitRates] = {}
        self._mixed: dict[tuple[PoolCounts, Demand], float] = {}
        self._mixed_admitted: dict[tuple[PoolCounts, Demand], float] = {}

    def knows(self, pool: str) -> bool:
        """Report whether the speed of the pool's workers is known."""
        return pool in self._speeds

    def attainment(self, layout: Layout, load: Load) -> float:
        """Return the share of requests inside the SLO, 0 to 1."""
        if not layout.complete:
            return 0.0
        share = self._mixed_share(layout, load)
        split = self._disaggregated(layout, load.scaled(1 - share) if share else load) if share < 1 else 0.0
        both = self._both(layout.mixed, load.scaled(share) if share < 1 else load) if share else 0.0
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
            admitted = max(
                whole, cautious if layout.prefill or layout.decode else (cautious + self._mixed_in(layout, load)) / 2
            )
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
        return sum(count * (rate.prefill if role is Role.PREFILL else rate.decode) for count, rate in rates)

    def unit_rates(self, pool: str, load: Load) -> UnitRates:
        """Return what one worker of the pool carries at full load: the fluid limit, where searches start."""
        prompt, answer = load.prefill, load.decode
        key = (
            pool,
            prompt.isl_tokens,
            prompt.isl_cv2,
            prompt.prefix_hit,
            answer.isl_tokens,
            answer.osl_tokens,
            answer.osl_cv2,
        )
        if key not in self._rates:
            self._rates[key] = unit_rates(self._speeds[pool], load, self.slo)
        return self._rates[key]

    def residence_seconds(self, role: Role, layout: Layout, load: Load) -> float:
        """Return how long a worker of `role` still has its old work: the mean time of a request on it."""
        stations = self._stations(layout.of_role(role))
        if role is Role.PREFILL:
            return max((1 / self.unit_rates(pool, load).prefill for pool, _ in layout.prefill), default=0.0)
        step = decode_step(replace(load.decode, rate=min(load.rate, load.decode.rate)), stations)
        # Steps beyond the promise do not last: requests are late then, and admission or the next flip ends it.
        return load.decode.osl_tokens * min(step, self.slo.tpot_seconds)

    def _disaggregated(self, layout: Layout, load: Load) -> float:
        patience = self._patience_seconds(load)
        decode_key = (layout.decode, load.decode, patience)
        known = self._decode.get(decode_key)
        if known is None:
            stations = self._stations(layout.decode)
            step = decode_step(load.decode, stations)
            tpot = self.slo.tpot_seconds
            inside = 0.0
            if step < inf:
                inside = decode_attainment(load.decode, stations, tpot_seconds=tpot, wait_seconds=patience)
            known = self._decode[decode_key] = (step, inside)
        step, decoded = known
        if decoded == 0.0:
            return 0.0
        key = (layout.prefill, load.prefill, step, False)
        prefilled = self._prefill.get(key)
        if prefilled is None:
            prefilled = self._prefill[key] = prefill_attainment(
                load.prefill,
                self._stations(layout.prefill),
                ttft_seconds=self.slo.ttft_seconds,
                extra_seconds=step,
            )
        return prefilled * decoded

    def _admitted(self, layout: Layout, load: Load) -> float:
        """Return the share inside the SLO of a split when those that would be late are turned away at arrival.

        A request that is turned away for one role is no work for the other: each sees what the other lets in.
        """
        patience = self._patience_seconds(load)
        decoded = self._decoded(layout.decode, load.decode, patience)
        step = min(decode_step(load.decode, self._stations(layout.decode)), self.slo.tpot_seconds)
        demand = load.prefill if decoded > _NEARLY_ALL else replace(load.prefill, rate=load.prefill.rate * decoded)
        key = (layout.prefill, demand, step, True)
        prefilled = self._prefill.get(key)
        if prefilled is None:
            prefilled = self._prefill[key] = prefill_attainment(
                demand,
                self._stations(layout.prefill),
                ttft_seconds=self.slo.ttft_seconds,
                extra_seconds=step,
                early=True,
            )
        if decoded <= _NEARLY_ALL and prefilled <= _NEARLY_ALL:
            fewer = replace(load.decode, rate=load.decode.rate * prefilled)
            decoded = self._decoded(layout.decode, fewer, patience)
        return prefilled * decoded

    def _decoded(self, decode: PoolCounts, demand: Demand, patience: float) -> float:
        """Return the share that decode workers let in."""
        known = self._let_in.get((decode, demand, patience))
        if known is None:
            stations, tpot = self._stations(decode), self.slo.tpot_seconds
            known = decode_admitted(demand, stations, tpot_seconds=tpot, wait_seconds=patience)
            self._let_in[decode, demand, patience] = known
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

    def _both(self, mixed: PoolCounts, load: Load) -> float:
        demand = _heavier(load)
        known = self._mixed.get((mixed, demand))
        if known is None:
            known = self._mixed[mixed, demand] = mixed_attainment(
                demand,
                self._stations(mixed),
                ttft_seconds=self.slo.ttft_seconds,
                tpot_seconds=self.slo.tpot_seconds,
            ).joint
        return known

    def _mixed_in(self, layout: Layout, load: Load) -> float:
        """Return the share inside the SLO of mixed workers when requests that would be late are turned away."""
        demand = _heavier(load)
        key = (layout.mixed, demand)
        if key not in self._mixed_admitted:
            self._mixed_admitted[key] = mixed_admitted(
                demand,
                self._stations(layout.mixed),
                ttft_seconds=self.slo.ttft_seconds,
                tpot_seconds=self.slo.tpot_seconds,
            )
        return self._mixed_admitted[key]

    def _mixed_share(self, layout: Layout, load: Load) -> float:
        """Requests go where there is room: in proportion to what each side carries at most."""
        if not layout.mixed:
            return 0.0
        if not (layout.prefill and layout.decode):
            return 1.0
        both = sum(count * self.unit_rates(pool, load).mixed for pool, count in layout.mixed)
        split = min(self.role_rate(layout, load, role) for role in (Role.PREFILL, Role.DECODE))
        return both / (both + split)

    def _stations(self, counts: PoolCounts) -> Stations:
        return [(self._speeds[pool], count) for pool, count in counts]


def _heavier(load: Load) -> Demand:
    """Return what one worker has to do that does both: the longer queue counts for both."""
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
