"""What idle workers keep of a promise: no number of workers keeps more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.eligible import eligible, length_at


def reachable(speeds: Mapping[str, WorkerSpeed], slo: LatencyTargets, load: Load) -> LatencyTargets:
    """Return the promise, each part widened until an idle worker of the fastest pool keeps it.

    That of the pace is doubled: an answer that is just in time alone would allow no other one beside it.

    Beyond what the hardware can do every layout would look equally bad; with a promise that can be kept, the best
    layout is still the one that is least late. Kept means: by so many prompts that both parts together hold for the
    promised share.
    """
    step, first = _idle_seconds(speeds, replace(load, prefill=_long(load.prefill, slo.attainment)))
    return replace(
        slo,
        ttft_seconds=max(slo.ttft_seconds, first + step),
        tpot_seconds=_doubled(slo.tpot_seconds, step),
    )


def within_reach(speeds: Mapping[str, WorkerSpeed], slo: LatencyTargets, load: Load) -> Load:
    """Return the requests whose prompts are short enough that an idle worker of the fastest pool keeps the promise.

    Where so few are too long that the promised share is kept, it is all of them; the rate is 0 where all are too long.
    """

    def late(tokens: int) -> bool:
        step, first = _idle_seconds(speeds, _of_length(load, tokens))
        return first + step > slo.ttft_seconds or step > slo.tpot_seconds

    lengths = range(1, ceil(_long(load.prefill, slo.attainment).isl_tokens) + 1)
    longest = bisect_left(lengths, True, key=late)
    if longest in (0, len(lengths)):
        return load.scaled(1.0 if longest else 0.0)
    rule = {"": PoolAdmits(max_prompt_tokens=longest)}
    (share, prompts), (_, answers) = (eligible(each, "", rule) for each in (load.prefill, load.decode))
    return Load(rate=share * load.rate, prefill=prompts, decode=answers) if share else load.scaled(0.0)


def _idle_seconds(speeds: Mapping[str, WorkerSpeed], load: Load) -> tuple[float, float]:
    """Return how long a decode step, and the mean prompt, takes on an idle worker of the fastest pool."""
    step = min((step_seconds(speed, load) for speed in speeds.values()), default=0.0)
    first = min((first_seconds(speed, load) for speed in speeds.values()), default=0.0)
    return step, first


def _long(prompts: Demand, attainment: float) -> Demand:
    """Return prompts as long as the longest that count: where each part of the promise misses as many, both hold."""
    longest = length_at(min(attainment**0.5, 1 - 1e-6), prompts.isl_tokens, prompts.isl_cv2)
    return replace(prompts, isl_tokens=longest)


def _of_length(load: Load, tokens: float) -> Load:
    prompt, answer = (replace(each, isl_tokens=tokens) for each in (load.prefill, load.decode))
    return replace(load, prefill=prompt, decode=answer)


def first_seconds(speed: WorkerSpeed, load: Load) -> float:
    """Return how long an idle worker takes for a mean prompt."""
    prompt = load.prefill
    fresh, squared = prompt.isl_tokens * (1 - prompt.prefix_hit), prompt.isl_tokens**2 * (1 - prompt.prefix_hit**2)
    return speed.prefill_seconds(fresh, squared)


def step_seconds(speed: WorkerSpeed, load: Load) -> float:
    """Return how long a step of an idle worker takes with one mean request."""
    return speed.decode_step_seconds(1.0, load.decode.isl_tokens)


def _doubled(seconds: float, least: float) -> float:
    return seconds if seconds >= least else _doubled(2.0 * seconds, least)
