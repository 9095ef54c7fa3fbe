"""What a layout of workers does for a load: attainment, goodput, and the plain rates that searches start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import inf

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
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
from fulcrum.performance.search import largest_share
from fulcrum.performance.shares import PoolShares
from fulcrum.performance.tuning import TUNING


class PerformanceModel:
    """Estimates for one set of speeds and one promise; remembers what it has computed within one plan."""

    def __init__(
        self,
        speeds: Mapping[str, WorkerSpeed],
        slo: LatencyTargets,
        *,
        turns_away: bool = True,
        admits: Mapping[str, PoolAdmits] | None = None,
        transfers: Mapping[tuple[str, str], TransferCost] | None = None,
    ) -> None:
        """`turns_away`: the gateway turns away requests that would be late, so that others are not.

        `admits` of the pools that do not take every request; `transfers` by prefill and decode pool, where they were
        learnt: elsewhere the speeds say what they cost.
        """
        self.admits: Mapping[str, PoolAdmits] = admits or {}
        self._shares = PoolShares(speeds, slo, self.admits, transfers or {})
        self._turns_away = turns_away
        self._speeds = speeds
        self.slo = slo
        self._summed = cache(self._shares.summed)
        self._step = cache(self._shares.step)
        self._rates = cache(self._shares.rates)
        self.known_splits: dict[tuple[PoolCounts, Load], tuple[Layout, ...]] = {}
        """Kept for `split`, by workers per pool and load."""

    def transfer(self, prefill: str, decode: str) -> TransferCost:
        """Return what moving KV from a prefill to a decode pool costs."""
        return self._shares.transfer(prefill, decode)

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
                cautious += TUNING.mixed_chosen * (self._mixed(mixed_admitted, layout, load) - cautious)
            admitted = max(whole, cautious)
        return load.rate * (admitted if self._turns_away else (admitted + whole) / 2)

    def admissible(self, layout: Layout, load: Load) -> float:
        """Return the largest share of the load for which the promise is kept, 0 to 1."""
        if self.attainment(layout, load) >= self.slo.attainment:
            return 1.0
        return largest_share(
            lambda share: self.attainment(layout, load.scaled(share)) - self.slo.attainment,
            most=min(self.cover(layout, load), 1.0),
        )

    def cover(self, layout: Layout, load: Load) -> float:
        """Return how many times over the workers could carry the load without any waiting."""
        return sum(self._carried(layout, load)) / max(load.rate, 1e-9)

    def role_rate(self, layout: Layout, load: Load, role: Role) -> float:
        """Return the requests/s that the workers of prefill or decode carry without any waiting."""
        rates = [(count, self.unit_rates(pool, load)) for pool, count in layout.of_role(role)]
        every = sum(count * rate.of_role(role) for count, rate in rates if rate.share == 1.0)
        # A pool that takes only some requests helps as far as these come beside those that the others carry.
        some = [(count * rate.of_role(role), rate.share) for count, rate in rates if rate.share < 1.0]
        return every + sum(min(rate, every * share / (1.0 - share)) if every else rate for rate, share in some)

    def unit_rates(self, pool: str, load: Load) -> UnitRates:
        """Return what one worker of the pool carries at full load: the fluid limit, where searches start."""
        return self._rates(pool, load.scaled(0.0))

    def residence_seconds(self, role: Role, layout: Layout, load: Load) -> float:
        """Return how long a worker of `role` still has its old work: the mean time of a request on it."""
        if role is Role.PREFILL:
            return max((1 / self.unit_rates(pool, load).prefill for pool, _ in layout.prefill), default=0.0)
        step = self._step(load.decode, layout.of_role(role))
        # Steps beyond the promise do not last: requests are late then, and admission or the next flip ends it.
        return load.decode.osl_tokens * min(step, self.slo.tpot_seconds)

    def _disaggregated(self, layout: Layout, load: Load) -> float:
        step = self._step(load.decode, layout.decode, layout.prefill)
        decoded = self._decoded(decode_attainment, layout, load.decode, load) if step < inf else 0.0
        return decoded and decoded * self._prefilled(layout, load.prefill, step, early=False)

    def _admitted(self, layout: Layout, load: Load) -> float:
        """Return the share inside the SLO of a split when those that would be late are turned away at arrival.

        A request that is turned away for one role is no work for the other: each sees what the other lets in.
        """
        decoded = self._decoded(decode_admitted, layout, load.decode, load)
        step = min(self._step(load.decode, layout.decode, layout.prefill), self.slo.tpot_seconds)
        prefilled = self._prefilled(layout, _fewer(load.prefill, decoded), step, early=True)
        return prefilled * self._decoded(decode_admitted, layout, _fewer(load.decode, prefilled), load)

    def _prefilled(self, layout: Layout, demand: Demand, step_seconds: float, *, early: bool) -> float:
        """Return the share with its first token in time; `early` as for `prefill_attainment`."""
        promise = {"ttft_seconds": self.slo.ttft_seconds, "extra_seconds": step_seconds, "early": early}
        return self._summed(prefill_attainment, Role.PREFILL, demand, layout.prefill, layout.decode, **promise)

    def _decoded(self, estimate: Callable[..., float], layout: Layout, demand: Demand, load: Load) -> float:
        """Return the share that decode workers serve, or let in, of `demand`, which is the decode side of `load`."""
        promise = {"tpot_seconds": self.slo.tpot_seconds, "wait_seconds": self._patience_seconds(load)}
        return self._summed(estimate, Role.DECODE, demand, layout.decode, layout.prefill, **promise)

    def _mixed(self, estimate: Callable[..., float], layout: Layout, load: Load) -> float:
        """Return the share that mixed workers serve, or let in."""
        promise = {"ttft_seconds": self.slo.ttft_seconds, "tpot_seconds": self.slo.tpot_seconds}
        wait_seconds = self._patience_seconds(load)
        return self._summed(estimate, Role.MIXED, _heavier(load), layout.mixed, **promise, wait_seconds=wait_seconds)

    def _patience_seconds(self, load: Load) -> float:
        """Return how long a request may wait for a place in a decode batch, which is a part of its TTFT.

        Half of what the promise leaves beyond the work itself on an idle worker; the other half is for the prefill.
        """
        prompt = load.prefill
        fresh = prompt.isl_tokens * (1 - prompt.prefix_hit)
        squared = prompt.isl_tokens**2 * (1 - prompt.prefix_hit**2)
        work = min(
            speed.prefill_seconds(fresh, squared) + speed.decode_step_seconds(1.0, load.decode.isl_tokens)
            for speed in self._speeds.values()
        )
        return max(0.0, self.slo.ttft_seconds - work) / 2

    def _mixed_share(self, layout: Layout, load: Load) -> float:
        """Requests go where there is room: in proportion to what each side carries at most."""
        if not layout.mixed:
            return 0.0
        if not (layout.prefill and layout.decode):
            return 1.0
        both, split = self._carried(layout, load)
        return both / (both + split)

    def _carried(self, layout: Layout, load: Load) -> tuple[float, float]:
        """Return the requests/s that mixed workers carry without any waiting, and those that prefill and decode do."""
        both = sum(count * self.unit_rates(pool, load).mixed for pool, count in layout.mixed)
        return both, min(self.role_rate(layout, load, role) for role in (Role.PREFILL, Role.DECODE))


def _both_kept(demand: Demand, stations: Stations, **promise: float) -> float:
    """Return the share of requests that mixed workers serve inside both promises."""
    return mixed_attainment(demand, stations, **promise).joint


def _fewer(demand: Demand, share: float) -> Demand:
    """Return a share of the requests."""
    return replace(demand, rate=demand.rate * share) if share < 1.0 else demand


def _heavier(load: Load) -> Demand:
    """Return what one worker has to do that does both: the higher rate counts for both."""
    longer = max(load.prefill, load.decode, key=lambda demand: demand.rate)
    return replace(longer, isl_tokens=load.prefill.isl_tokens, osl_tokens=load.decode.osl_tokens)


def reachable(speeds: Mapping[str, WorkerSpeed], slo: LatencyTargets, load: Load) -> LatencyTargets:
    """Return the promise, each part doubled until an idle worker of the fastest pool keeps it.

    Beyond what the hardware can do every layout would look equally bad; with a promise that can be kept, the best
    layout is still the one that is least late. Requests that no worker can hold at any pace leave it as it is.
    """
    idle_prompt, idle_answer = replace(load.prefill, rate=0.0), replace(load.decode, rate=0.0)
    stations = [[(speed, 1)] for speed in speeds.values()]
    part = slo.attainment**0.5
    steps = [decode_step(idle_answer, station) for station in stations]
    step = min((step for step in steps if step < inf), default=0.0)

    def in_pace(seconds: float) -> bool:
        return any(decode_attainment(idle_answer, station, tpot_seconds=seconds) >= part for station in stations)

    def in_time(seconds: float) -> bool:
        return any(
            prefill_attainment(idle_prompt, station, ttft_seconds=seconds, extra_seconds=step) >= part
            for station in stations
        )

    return replace(
        slo, ttft_seconds=_widened(slo.ttft_seconds, in_time), tpot_seconds=_widened(slo.tpot_seconds, in_pace)
    )


def _widened(seconds: float, kept: Callable[[float], bool]) -> float:
    return seconds if kept(seconds) or not kept(inf) else _widened(2.0 * seconds, kept)
