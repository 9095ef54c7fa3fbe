"""How much load workers can take inside the SLO, and how long a backlog lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from fulcrum.balance.demand import Demand, Slo
from fulcrum.balance.queueing.batch import Context, batch_lane
from fulcrum.balance.queueing.decode import decode_attainment, decode_step
from fulcrum.balance.queueing.mixed import mixed_attainment
from fulcrum.balance.queueing.prefill import Stations, prefill_attainment, prompt_time

_GOLDEN = 0.618034


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

    `demand.rate` is not read. Within 0.2 % of what the workers could do without any SLO, from below.
    """
    return _highest_rate(
        lambda rate: prefill_attainment(
            replace(demand, rate=rate), stations, ttft_seconds=ttft_seconds, extra_seconds=extra_seconds
        ),
        attainment,
        prefill_throughput(demand, stations),
    )


def decode_capacity_rate(demand: Demand, stations: Stations, *, tpot_seconds: float, attainment: float) -> float:
    """Return the highest rate (requests/s) at which `decode_attainment` is at least `attainment`; 0 when none is."""
    return _highest_rate(
        lambda rate: decode_attainment(replace(demand, rate=rate), stations, tpot_seconds=tpot_seconds),
        attainment,
        decode_throughput(demand, stations),
    )


def mixed_capacity_rate(demand: Demand, stations: Stations, slo: Slo, *, extra_seconds: float = 0.0) -> float:
    """Return the highest rate (requests/s) at which the joint attainment of mixed workers reaches the SLO's; or 0."""
    return _highest_rate(
        lambda rate: _mixed_joint(demand, rate, slo, stations, extra_seconds),
        slo.attainment,
        min(prefill_throughput(demand, stations), decode_throughput(demand, stations)),
    )


def prefill_throughput(demand: Demand, stations: Stations) -> float:
    """Return the requests/s that prefill workers do when their steps are full and nobody minds the wait."""
    total = 0.0
    for speed, workers in stations:
        time = prompt_time(
            speed,
            constant=speed.coefficients.prefill_a,
            prefix_hit=demand.prefix_hit,
            budget_tokens=speed.max_batched_tokens,
        )
        isl = max(demand.isl_tokens, 1.0)
        constant = time.constant * max(isl * time.chunks, 1.0 / max(speed.max_batch, 1))
        seconds = constant + time.linear * isl + time.square * isl * isl * (1.0 + max(demand.isl_cv2, 0.0))
        total += workers / seconds if seconds > 0.0 else (inf if workers > 0 else 0.0)
    return total


def decode_throughput(demand: Demand, stations: Stations) -> float:
    """Return the requests/s that decode workers do with full batches and no regard to TPOT."""
    context = Context.of(demand)
    lanes = [batch_lane(speed, workers, context) for speed, workers in stations if workers > 0]
    steps = [lane.idle + lane.per_request * lane.room for lane in lanes]
    tokens = sum(
        lane.workers * lane.room / step if step > 0.0 else inf for lane, step in zip(lanes, steps, strict=True)
    )
    return tokens / max(demand.osl_tokens, 1.0)


def goodput(demand: Demand, slo: Slo, *, prefill: Stations, decode: Stations, handover_seconds: float = 0.0) -> float:
    """Return the requests/s inside the SLO when what cannot be served in time is turned away before it costs work.

    The best of `rate * joint_attainment(rate)` over admitted rates up to `demand.rate`, so that overload and an
    attainment that is out of reach still rank one split above another.
    """
    return _best_goodput(
        lambda rate: joint_attainment(
            replace(demand, rate=rate), slo, prefill=prefill, decode=decode, handover_seconds=handover_seconds
        ),
        min(demand.rate, prefill_throughput(demand, prefill), decode_throughput(demand, decode)),
    )


def mixed_goodput(demand: Demand, slo: Slo, stations: Stations, *, extra_seconds: float = 0.0) -> float:
    """Return `goodput` of workers that do both roles."""
    return _best_goodput(
        lambda rate: _mixed_joint(demand, rate, slo, stations, extra_seconds),
        min(demand.rate, prefill_throughput(demand, stations), decode_throughput(demand, stations)),
    )


def backlog_seconds(
    demand: Demand, stations: Stations, *, queued_prompt_tokens: float, queued_requests: float
) -> float:
    """Return how long prefill workers need until what is queued now is gone while `demand` goes on arriving.

    Infinite when they cannot keep up with the arrivals; 0 without a backlog.
    """
    if queued_prompt_tokens <= 0.0:
        return 0.0
    able = prefill_throughput(demand, stations)
    if able <= demand.rate:
        return inf
    prompts = queued_requests if queued_requests > 0.0 else queued_prompt_tokens / max(demand.isl_tokens, 1.0)
    queued = replace(demand, isl_tokens=queued_prompt_tokens / prompts)
    return prompts / prefill_throughput(queued, stations) / (1.0 - demand.rate / able)


def _mixed_joint(demand: Demand, rate: float, slo: Slo, stations: Stations, extra_seconds: float) -> float:
    return mixed_attainment(
        replace(demand, rate=rate),
        stations,
        ttft_seconds=slo.ttft_seconds,
        tpot_seconds=slo.tpot_seconds,
        extra_seconds=extra_seconds,
    ).joint


def _highest_rate(attainment_at: Callable[[float], float], target: float, most: float) -> float:
    """Bisect between 0 and `most`, the rate that no attainment survives."""
    if most <= 0.0 or attainment_at(0.0) < target:
        return 0.0
    if most == inf:
        return inf
    low, high = 0.0, most
    for _ in range(9):
        middle = (low + high) / 2
        if attainment_at(middle) >= target:
            low = middle
        else:
            high = middle
    return low


def _best_goodput(attainment_at: Callable[[float], float], most: float) -> float:
    """Return the highest `rate * attainment(rate)` up to `most`: golden section, as it rises to a peak and falls."""
    best = most * attainment_at(most) if most > 0.0 else 0.0
    low, high = 0.0, most
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = left * attainment_at(left), right * attainment_at(right)
    for _ in range(9):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = left * attainment_at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = right * attainment_at(right)
        best = max(best, at_left, at_right)
    return best
