"""Workers that prefill and decode in the same steps (chunked prefill)."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.balance.demand import Demand
from fulcrum.balance.queueing.decode import decode_attainment
from fulcrum.balance.queueing.prefill import Stations, prefill_attainment


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAttainment:
    """Shares of requests, 0 to 1."""

    ttft: float
    tpot: float

    @property
    def joint(self) -> float:
        """Both hold; taken as independent."""
        return self.ttft * self.tpot


def mixed_attainment(
    demand: Demand, stations: Stations, *, ttft_seconds: float, tpot_seconds: float, extra_seconds: float = 0.0
) -> MixedAttainment:
    """Return the shares of requests inside the SLO on workers that do both roles; no KV is transferred."""
    return MixedAttainment(
        ttft=prefill_attainment(demand, stations, ttft_seconds=ttft_seconds, extra_seconds=extra_seconds),
        tpot=decode_attainment(demand, stations, tpot_seconds=tpot_seconds),
    )
