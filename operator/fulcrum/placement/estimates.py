"""`placement.performance.Performance` by the queueing estimates that the balance sizes with.

Pools of unlike speed are estimated one by one, each with the share of the requests that it can carry: this is how the
flow of a placement spreads them, and close to what the router does. Prefill pools are also taken as one queue, and the
better estimate counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.performance import Stations, highest_rate
from fulcrum.placement.queueing import (
    decode_admitted,
    decode_attainment,
    decode_step,
    mixed_admitted,
    mixed_attainment,
    prefill_attainment,
)


def ranks_apart(stations: Stations) -> Stations:
    """Return the pools with each rank of their workers as a worker of its own, which is how requests queue."""
    if all(speed.ranks == 1 for speed, _ in stations):
        return stations
    return [(replace(speed, ranks=1), count * speed.ranks) for speed, count in stations]


@dataclass(frozen=True, slots=True)
class QueueingEstimates:
    """Shares of requests inside `slo`, for requests of the lengths of `demand` (its rate does not matter)."""

    demand: Demand
    slo: LatencyTargets
    turns_away: bool = False
    """Requests that would be late are turned away at arrival, as admission does: shares are those of requests that are
    let in. False: every request is served."""
    _known: dict[tuple[tuple[WorkerSpeed, int], Role], float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def target(self) -> float:
        """Return the promised share."""
        return self.slo.attainment

    def prefill(self, rate: float, stations: Stations, *, beside_idle: bool = False) -> float:
        """Return the share of first tokens in time, behind decode steps that just keep their promise (or take none)."""
        return self._prefill(rate, ranks_apart(stations), 0.0 if beside_idle else self.slo.tpot_seconds)

    def decode(self, rate: float, stations: Stations, *, beside_idle: bool = False) -> float:
        """Return the share of requests whose tokens come in time; beside idle prefill, all the TTFT is left to wait."""
        wait = self.slo.ttft_seconds / 2 if beside_idle else self._spare_seconds(stations, self.slo.tpot_seconds)
        return self._decode(rate, ranks_apart(stations), wait)

    def split(self, rate: float, prefill: Stations, decode: Stations) -> float:
        """Return the share inside both promises; the first token waits for one decode step."""
        prefill, decode = ranks_apart(prefill), ranks_apart(decode)
        parts = self._parts(decode, Role.DECODE)
        steps = [(part, decode_step(self._at(rate * part), [pool])) for part, pool in parts]
        if self.turns_away:
            steps = [(part, min(step, self.slo.tpot_seconds)) for part, step in steps]
        step = sum(part * each for part, each in steps)
        if step == inf or not parts:
            return 0.0
        started = self._prefill(rate, prefill, step)
        # Requests that are turned away for their first token never decode.
        decoding = rate * started if self.turns_away else rate
        return started * self._decode(
            decoding, decode, self._spare_seconds(prefill, step), senders=sum(count for _, count in prefill)
        )

    def mixed(self, rate: float, stations: Stations) -> float:
        """Return the share inside both promises on workers that do both."""
        slo = self.slo
        promise = {"ttft_seconds": slo.ttft_seconds, "tpot_seconds": slo.tpot_seconds}
        stations = ranks_apart(stations)
        whole = mixed_attainment(self._at(rate), stations, **promise).joint
        return max(whole, mixed_admitted(self._at(rate), stations, **promise)) if self.turns_away else whole

    def floor(self, speeds: Sequence[WorkerSpeed]) -> tuple[float, float]:
        """Return the shortest TTFT and TPOT (seconds) of a mean request on an idle worker of any of `speeds`."""
        isl, context = self.demand.isl_tokens, self.demand.isl_tokens + self.demand.osl_tokens / 2
        return (
            min(speed.prefill_seconds(isl, isl * isl) for speed in speeds),
            min(speed.decode_step_seconds(1, context) for speed in speeds),
        )

    def _decode(self, rate: float, stations: Stations, wait_seconds: float, *, senders: float = inf) -> float:
        return sum(
            part * self._decode_of(self._at(rate * part), [pool], wait_seconds, part * senders)
            for part, pool in self._parts(stations, Role.DECODE)
        )

    def _decode_of(self, demand: Demand, stations: Stations, wait_seconds: float, senders: float) -> float:
        promise = {"tpot_seconds": self.slo.tpot_seconds, "wait_seconds": wait_seconds, "senders": senders}
        whole = decode_attainment(demand, stations, **promise)
        return max(whole, decode_admitted(demand, stations, **promise)) if self.turns_away else whole

    def _parts(self, stations: Stations, role: Role) -> list[tuple[float, tuple[WorkerSpeed, int]]]:
        """Return pools with the share of the requests that they get: in proportion to what each carries alone."""
        if len(stations) == 1:
            return [(1.0, stations[0])]
        carried = [self._alone(pool, role) for pool in stations]
        total = sum(carried)
        return [(rate / total, pool) for rate, pool in zip(carried, stations, strict=True)] if total > 0 else []

    def _alone(self, pool: tuple[WorkerSpeed, int], role: Role) -> float:
        """Return the rate that a pool carries alone."""
        if (pool, role) not in self._known:
            share = self.prefill if role is Role.PREFILL else self.decode
            self._known[pool, role] = highest_rate(lambda rate: share(rate, [pool]), self.target)
        return self._known[pool, role]

    def _at(self, rate: float) -> Demand:
        return replace(self.demand, rate=rate)

    def _prefill(self, rate: float, stations: Stations, step_seconds: float) -> float:
        together = self._prefill_of(rate, stations, step_seconds)
        if len(stations) == 1:
            return together
        apart = sum(
            part * self._prefill_of(rate * part, [pool], step_seconds)
            for part, pool in self._parts(stations, Role.PREFILL)
        )
        return max(together, apart)

    def _prefill_of(self, rate: float, stations: Stations, step_seconds: float) -> float:
        ttft = self.slo.ttft_seconds
        return prefill_attainment(
            self._at(rate), stations, ttft_seconds=ttft, extra_seconds=step_seconds, early=self.turns_away
        )

    def _spare_seconds(self, prefill: Stations, step_seconds: float) -> float:
        """Return half of what the TTFT leaves beyond an idle worker's time: a request may wait that long for room."""
        isl = self.demand.isl_tokens
        alone = min(speed.prefill_seconds(isl, isl * isl) + speed.transfer_seconds(isl) for speed, _ in prefill)
        return max(0.0, (self.slo.ttft_seconds - alone - step_seconds) / 2)
