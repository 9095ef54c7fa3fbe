"""What a layout of workers carries, were work a fluid: nobody waits, and every request is a mean one.

How much less keeps a promise is seen by playing requests (`rehearsal`), and by what comes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from math import inf

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.eligible import eligible
from fulcrum.performance.layout import Layout
from fulcrum.performance.rates import UnitRates, unit_rates
from fulcrum.performance.reach import first_seconds, step_seconds, within_reach
from fulcrum.performance.staffing import staffed


class FluidModel:
    """For one set of speeds and one promise; remembers what it has computed within one plan."""

    def __init__(
        self,
        speeds: Mapping[str, WorkerSpeed],
        slo: LatencyTargets,
        *,
        promise: LatencyTargets | None = None,
        admits: Mapping[str, PoolAdmits] | None = None,
        transfers: Mapping[tuple[str, str], TransferCost] | None = None,
    ) -> None:
        """`promise` where `slo` is a wider one (`reach.reachable`): what is served inside it waits no longer than that.

        `admits` of the pools that do not take every request; `transfers` by prefill and decode pool, where learnt.

        Elsewhere the speeds say what transfers cost.
        """
        self.admits: Mapping[str, PoolAdmits] = admits or {}
        self.slo = slo
        self._promise = promise or slo
        self._transfers = transfers or {}
        self._speeds = speeds
        self._at_best = {pool: self._fastest(pool) for pool in speeds} if transfers else speeds
        """Speeds with the least that moving KV to or from any pool costs them."""
        self._rates = cache(self._computed_rates)
        self._staff = cache(self._computed_staff)
        self._reach = cache(partial(within_reach, speeds, self._promise))

    def knows(self, pool: str) -> bool:
        """Report whether the speed of the pool's workers is known."""
        return pool in self._speeds

    def within_reach(self, load: Load) -> Load:
        """Return the requests that an idle worker serves inside the promise; where `slo` is not a wider one, all."""
        return load if self.slo == self._promise else self._reach(load)

    def transfer(self, prefill: str, decode: str) -> TransferCost:
        """Return what moving KV from a prefill to a decode pool costs."""
        learnt = self._transfers.get((prefill, decode))
        return learnt or self._speeds[prefill].transfer.slower(self._speeds[decode].transfer)

    def unit_rates(self, pool: str, load: Load) -> UnitRates:
        """Return what one worker of the pool carries of the requests that the pool takes."""
        return self._rates(pool, load.scaled(0.0))

    def role_rate(self, layout: Layout, load: Load, role: Role) -> float:
        """Return the requests/s that the workers of a role carry."""
        rates = [(count, self.unit_rates(pool, load)) for pool, count in layout.of_role(role)]
        every = sum(count * each.of_role(role) for count, each in rates if each.share_of(role) == 1.0)
        # A pool that takes only some requests helps as far as these come beside those that the others carry.
        some = [(count * each.of_role(role), each.share_of(role)) for count, each in rates if each.share_of(role) < 1.0]
        return every + sum(min(rate, every * share / (1.0 - share)) if every else rate for rate, share in some)

    def room(self, layout: Layout, load: Load) -> float:
        """Return how many times over the workers carry what they are needed for, in the scarcer role."""
        both = self.role_rate(layout, load, Role.MIXED)
        shares = [
            (both + self.role_rate(layout, load, role)) / max(rate, 1e-9) for role, rate in self.needed(load).items()
        ]
        return min(shares) if layout.complete else 0.0

    def served(self, layout: Layout, load: Load) -> float:
        """Return the share of the load that the workers serve within a usual promise, 0 to 1."""
        return min(1.0, self.room(layout, load))

    def enough(self, layout: Layout, load: Load) -> bool:
        """Report whether the workers keep a usual promise for the load."""
        if not layout.complete:
            return False
        needed = self.needed(load)
        both = self._taken(layout, load, Role.MIXED, max(needed.values()))
        return all(both + self._taken(layout, load, role, rate) >= rate for role, rate in needed.items())

    def needed(self, load: Load, *, share_missed: float = 1.0) -> dict[Role, float]:
        """Return the requests/s that workers must carry so that few requests wait too long, by role.

        `share_missed`: of the misses that the promise allows, those that may come of it.

        Counted in places of the fastest pool: ranks that prefill one prompt after another, answers that are decoded at
        once. What the promise of the first token leaves beyond the work itself may be waited for one of them.
        """
        misses = share_missed * (1 - self.slo.attainment**0.5)
        return {
            role: self._staff(role, demand, load, misses) if demand.rate > 0 else 0.0
            for role, demand in ((Role.PREFILL, load.prefill), (Role.DECODE, load.decode))
        }

    def _computed_staff(self, role: Role, demand: Demand, load: Load, misses: float) -> float:
        pool = max(self._speeds, key=lambda name: self.unit_rates(name, load).of_role(role))
        rates, speed = self.unit_rates(pool, load), self._speeds[pool]
        places = rates.prompts if role is Role.PREFILL else rates.answers
        each = rates.of_role(role) / places
        staff = staffed(
            demand.rate / each,
            patience=self._spare_seconds(speed, load) * each,
            misses=misses,
            variability=max((demand.dispersion + 1) / 2, 1.0),
        )
        return staff * each

    def _spare_seconds(self, speed: WorkerSpeed, load: Load) -> float:
        """Return how long requests may wait. Those that are late on any worker do not say how long the others may."""
        short = self.within_reach(load)
        promised, served = (self._promise, short) if short.prefill.rate > 0 else (self.slo, load)
        return max(promised.ttft_seconds - first_seconds(speed, served) - step_seconds(speed, served), 0.0)

    def advantage(self, pool: str, role: Role, load: Load) -> float:
        """Return what a worker of the pool carries in a role over what it carries in the other one (Ricardo)."""
        rates = self.unit_rates(pool, load)
        own, other = (rates.prefill, rates.decode) if role is Role.PREFILL else (rates.decode, rates.prefill)
        return own / other if other else inf

    def _taken(self, layout: Layout, load: Load, role: Role, rate: float) -> float:
        """Return the requests/s that workers of a role carry of `rate`: a pool has no more than it takes."""
        rates = [(count, self.unit_rates(pool, load)) for pool, count in layout.of_role(role)]
        return sum(min(count * each.of_role(role), each.share_of(role) * rate) for count, each in rates)

    def _computed_rates(self, pool: str, load: Load) -> UnitRates:
        share, taken = 1.0, load
        if pool in self.admits:
            share, prompts = eligible(load.prefill, pool, self.admits)
            taken = replace(load, prefill=prompts, decode=eligible(load.decode, pool, self.admits)[1])
        rates = unit_rates(self._at_best[pool], taken, self.slo)
        # Longer prompts are as much more of the work: counted in mean ones, the pool takes more of them.
        longer = taken.prefill.isl_tokens / load.prefill.isl_tokens
        rates = replace(rates, prefill=rates.prefill * longer, share=share, prompt_share=min(share * longer, 1.0))
        # Where other pools keep the promise, one that is too slow for it even when idle carries nothing.
        if self._too_slow(first_seconds, pool, taken, self.slo.ttft_seconds):
            rates = replace(rates, prefill=0.0, mixed=0.0)
        if self._too_slow(step_seconds, pool, taken, self.slo.tpot_seconds):
            rates = replace(rates, decode=0.0, mixed=0.0)
        return rates

    def _too_slow(
        self, idle_seconds: Callable[[WorkerSpeed, Load], float], pool: str, load: Load, promised_seconds: float
    ) -> bool:
        late = {name for name, speed in self._speeds.items() if idle_seconds(speed, load) > promised_seconds}
        return pool in late and late != self._speeds.keys()

    def _fastest(self, pool: str) -> WorkerSpeed:
        costs = [self.transfer(*pair) for other in self._speeds for pair in ((pool, other), (other, pool))]
        return self._speeds[pool].with_transfer(min(costs, key=lambda cost: cost.seconds_per_token))
