"""Estimates for pools together, each with the requests that it gets (`division`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.division import Part, divide, eligible
from fulcrum.performance.layout import Layout, PoolCounts
from fulcrum.performance.queueing import decode_step
from fulcrum.performance.queueing.prefill import Stations
from fulcrum.performance.rates import UnitRates, unit_rates


class PoolShares:
    """For one set of speeds, one promise, and what pools admit; remembers the divisions."""

    def __init__(
        self,
        speeds: Mapping[str, WorkerSpeed],
        slo: LatencyTargets,
        admits: Mapping[str, PoolAdmits],
        transfers: Mapping[tuple[str, str], TransferCost],
    ) -> None:
        """`transfers` by prefill and decode pool, where they were learnt."""
        self._speeds = speeds
        self._transfers = transfers
        self._slo = slo
        self._admits = admits
        self._at_best = {pool: self._fastest(pool) for pool in speeds} if transfers else speeds
        """Speeds with the least that moving KV to or from any pool costs them: the fluid limit."""
        self._known: dict[tuple[Role, PoolCounts, Demand], tuple[Part, ...]] = {}

    def summed(
        self,
        estimate: Callable[..., float],
        role: Role,
        demand: Demand,
        counts: PoolCounts,
        peers: PoolCounts = (),
        **promise: float,
    ) -> float:
        """Return a share of requests, estimated for each part of them on the pools that get it.

        `peers` are the pools that KV goes to, or for decode workers comes from.
        """
        share = 0.0
        for part in self._divided(role, demand, counts):
            if role is Role.DECODE and peers:
                promise["senders"] = part.share * sum(count * self._speeds[peer].ranks for peer, count in peers)
            stations = self.stations(part.counts, role, peers, part.demand)
            share += part.share * estimate(part.demand, stations, **promise)
        return share

    def step(self, demand: Demand, counts: PoolCounts, peers: PoolCounts = ()) -> float:
        """Return the seconds of the mean decode step; infinite where no pool keeps up."""
        steps = [
            (part.share, decode_step(part.demand, self.stations(part.counts, Role.DECODE, peers, part.demand)))
            for part in self._divided(Role.DECODE, demand, counts)
        ]
        finite = [(share, step) for share, step in steps if step < inf]
        if len(steps) == len(finite) == 1:
            return finite[0][1]
        return sum(share * step for share, step in finite) / sum(share for share, _ in finite) if finite else inf

    def rates(self, pool: str, load: Load) -> UnitRates:
        """Return what one worker of a pool carries of the requests that the pool takes."""
        if pool not in self._admits:
            return unit_rates(self._at_best[pool], load, self._slo)
        share, prompts = eligible(load.prefill, pool, self._admits)
        _, answers = eligible(load.decode, pool, self._admits)
        rates = unit_rates(self._at_best[pool], replace(load, prefill=prompts, decode=answers), self._slo)
        return replace(rates, share=share)

    def mixed_apart(
        self, layout: Layout, load: Load, cover: Callable[[Layout, Load], float]
    ) -> list[tuple[float, Layout, Load]]:
        """Return (share, layout, load) of mixed workers that take only some requests, and of all other workers.

        `cover` is `PerformanceModel.cover`.
        """
        some = tuple((pool, count) for pool, count in layout.mixed if pool in self._admits)
        if not some or not (layout.prefill and layout.decode):
            return [(1.0, layout, load)]
        others = Layout(layout.prefill, layout.decode, tuple(each for each in layout.mixed if each not in some))

        def carries(pool: str, demand: Demand) -> float:
            if pool:
                return self._carries(Role.MIXED, pool, demand)
            return cover(others, Load(rate=1.0, prefill=demand, decode=demand))

        return [
            (part.share, others if ("", 1) in part.counts else Layout(mixed=part.counts), _part_of(load, part))
            for part in divide(load.prefill, (("", 1), *some), self._admits, carries)
        ]

    def stations(self, counts: PoolCounts, role: Role, peers: PoolCounts, demand: Demand) -> Stations:
        """Return pools with their speeds, and with what moving KV to or from the `peers` costs each.

        Requests go around pairs of pools between which the KV of a mean prompt takes longer than the promise; a pool
        that has no other pair is left out, unless all are.
        """
        for within_seconds in (self._slo.ttft_seconds, inf):
            speeds = [(self._moving(pool, role, peers, demand, within_seconds), count) for pool, count in counts]
            # Ranks of a worker queue like workers of their own.
            if found := [(speed, count * speed.ranks) for speed, count in speeds if speed is not None]:
                break
        return found

    def _moving(
        self, pool: str, role: Role, peers: PoolCounts, demand: Demand, within_seconds: float
    ) -> WorkerSpeed | None:
        """Return the speed of a pool with the mean cost of its transfers that take so long at most; None: none does."""
        speed = self._speeds[pool]
        pairs = [((peer, pool) if role is Role.DECODE else (pool, peer), count) for peer, count in peers]
        costs = [(self.transfer(*pair), count) for pair, count in pairs]
        if all(cost == speed.transfer for cost, _ in costs):
            return speed
        costs = [each for each in costs if each[0].seconds(demand.isl_tokens) <= within_seconds]
        workers = sum(count for _, count in costs)
        if not workers:
            return None
        base = sum(count * cost.base_seconds for cost, count in costs) / workers
        rate = sum(count * cost.seconds_per_token for cost, count in costs) / workers
        return speed.with_transfer(TransferCost(base_seconds=base, seconds_per_token=rate))

    def _fastest(self, pool: str) -> WorkerSpeed:
        costs = [self.transfer(*pair) for other in self._speeds for pair in ((pool, other), (other, pool))]
        return self._speeds[pool].with_transfer(min(costs, key=lambda cost: cost.seconds_per_token))

    def transfer(self, prefill: str, decode: str) -> TransferCost:
        """Return what moving KV from a prefill to a decode pool costs."""
        learnt = self._transfers.get((prefill, decode))
        return learnt or self._speeds[prefill].transfer.slower(self._speeds[decode].transfer)

    def _divided(self, role: Role, demand: Demand, counts: PoolCounts) -> tuple[Part, ...]:
        known = self._known.get((role, counts, demand))
        if known is None:
            known = divide(demand, counts, self._admits, partial(self._carries, role))
            self._known[role, counts, demand] = known
        return known

    def _carries(self, role: Role, pool: str, demand: Demand) -> float:
        """Return the requests/s that one worker carries; 0 where it is too slow for the promise even when idle."""
        speed, isl = self._speeds[pool], demand.isl_tokens
        if role is not Role.DECODE and speed.prefill_seconds(isl, isl * isl) > self._slo.ttft_seconds:
            return 0.0
        if role is not Role.PREFILL and speed.decode_step_seconds(1.0, isl) > self._slo.tpot_seconds:
            return 0.0
        load = Load(rate=demand.rate, prefill=demand, decode=demand)
        return unit_rates(self._at_best[pool], load, self._slo).of_role(role)


def _part_of(load: Load, part: Part) -> Load:
    """Return the load that a part of the requests is."""
    lengths = part.demand
    prefill, decode = (
        replace(each, rate=each.rate * part.share, isl_tokens=lengths.isl_tokens, isl_cv2=lengths.isl_cv2, classes=())
        for each in (load.prefill, load.decode)
    )
    return Load(rate=load.rate * part.share, prefill=prefill, decode=decode)
