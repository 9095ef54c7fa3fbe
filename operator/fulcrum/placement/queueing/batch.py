"""How many requests generate at once in a pool with continuous batching, and how long its steps then take.

A decode worker shares its steps among all its requests: a processor-sharing queue whose speed depends on how many there
are. Its stationary distribution is insensitive to the distribution of output lengths (Cohen 1979; Baskett, Chandy,
Muntz and Palacios 1975; Kleinrock 1967 for one speed): with N requests, pi(N) is proportional to the product over
i <= N of rate * tokens * step(i) / i. A router that keeps workers equally full makes one such queue of the whole pool.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, floor, inf, log, pi, sqrt

import numpy as np

from fulcrum.capacity.decode_curve import decode_line, decode_steps
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing.lengths import Floats
from fulcrum.placement.queueing.tuning import TUNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Tokens in KV memory of one request that generates, at a random moment."""

    mean: float
    variance: float
    prompt: float
    """Mean tokens with which a request comes."""

    @classmethod
    def of(cls, demand: Demand) -> Context:
        """Return prompt + what is generated so far: long outputs are met more often (size bias), halfway on average."""
        spread = 1.0 + max(demand.osl_cv2, 0.0)
        isl, osl = demand.isl_tokens, demand.osl_tokens
        age = osl * spread / 2
        return cls(
            mean=isl + age,
            variance=isl * isl * max(demand.isl_cv2, 0.0) + max(osl * osl * spread**3 / 3 - age * age, 0.0),
            prompt=isl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """A pool whose workers step in `steps[i]` seconds with `counts[i]` requests each, straight between them."""

    counts: tuple[float, ...]
    """From 0 to what a worker has room for, ascending."""
    steps: tuple[float, ...]
    workers: int
    per_context: float
    """Seconds that one more token of context adds to a step."""
    kv_tokens: float

    def held(self, step: float) -> float:
        """Return how many requests all its workers hold when their steps take `step` seconds."""
        after = bisect_right(self.steps, step)
        if after == 0:
            return 0.0
        if after == len(self.steps):
            return self.workers * self.room
        way = (step - self.steps[after - 1]) / (self.steps[after] - self.steps[after - 1])
        return self.workers * (self.counts[after - 1] + way * (self.counts[after] - self.counts[after - 1]))

    @property
    def idle(self) -> float:
        """Return the shortest step."""
        return self.steps[0]

    @property
    def room(self) -> float:
        """Return the most requests of one worker."""
        return self.counts[-1]

    def step(self, count: float) -> float:
        """Return the step with so many requests on each worker."""
        if count >= self.counts[-1]:
            return self.steps[-1]
        after = max(bisect_right(self.counts, count), 1)
        way = (count - self.counts[after - 1]) / (self.counts[after] - self.counts[after - 1])
        return self.steps[after - 1] + way * (self.steps[after] - self.steps[after - 1])

    def cut(self, room: float) -> BatchGroup:
        """Return the same with room for fewer requests on each worker."""
        kept = max(bisect_left(self.counts, room), 1)
        return replace(self, counts=(*self.counts[:kept], room), steps=(*self.steps[:kept], self.step(room)))

    def roomy(self, others: Floats, context: Context) -> Floats:
        """Return the probability that one worker's KV memory takes one more prompt, by the requests it holds.

        The router counts requests and not tokens, so that contexts add up differently from worker to worker.
        """
        spread = np.sqrt(others * context.variance) + 1e-9
        return normal((self.kv_tokens - others * context.mean - context.prompt) / spread)


def batch_group(speed: WorkerSpeed, workers: int, context: Context, *, stretch: float = 1.0) -> BatchGroup:
    """Return the decode side of a pool. `stretch` is by how much other work in its steps prolongs them."""
    room = max(min(float(speed.max_batch), speed.kv_capacity_tokens / max(context.mean, 1.0)), 0.0)
    counts, steps = decode_steps(speed.coefficients, context.mean, room)
    return BatchGroup(
        counts=tuple(counts),
        steps=tuple(step * stretch for step in steps),
        workers=workers,
        per_context=decode_line(speed.coefficients, room)[2] * stretch,
        kv_tokens=float(speed.kv_capacity_tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The stationary state of a pool."""

    step: float
    """Seconds of a step in the middle of the distribution; infinite when the pool cannot keep up."""
    elasticity: float
    """By how many percent a step gets longer with 1 % more requests, 0 to 1."""
    steps: Floats
    """Seconds of a step that a newcomer sees, by state."""
    shares: Floats
    """Probability of each state; what is missing to 1 is the probability that there is no room."""
    waiting: float
    """Probability that there is no room."""
    spare_rate: float
    """Requests/s that the full pool could do beyond those that arrive: how fast a queue for room gets shorter."""

    @classmethod
    def overloaded(cls) -> Batches:
        """Return the state of a pool that cannot keep up."""
        nothing = np.zeros(1)
        return cls(step=inf, elasticity=1.0, steps=nothing, shares=nothing, waiting=1.0, spare_rate=0.0)


def batches(
    rate: float, tokens: float, groups: Sequence[BatchGroup], context: Context, *, dispersion: float = 1.0
) -> Batches:
    """Return the state of `groups` that take `rate` requests/s of `tokens` output tokens each.

    The router fills them so that steps take the same time everywhere: the quick ones first. Arrivals in bursts with
    an index of dispersion I make the number of requests vary (1 + I)/2 times as much as Poisson ones do (exact for
    geometric batches, exponential lengths and steps of one duration): the distribution is widened by that.
    """
    groups = [group for group in groups if group.workers > 0 and group.room >= 1.0]
    if not groups:
        return Batches.overloaded()
    knots, held = _line(groups)
    offered, room = rate * tokens, held[-1]
    if offered * knots[-1] >= room:
        return Batches.overloaded()
    least = max(min(group.step(1.0) for group in groups), 1e-12)
    middle, slope = _middle(offered, knots, held)
    step = max(middle / offered if offered > 0.0 else 0.0, least)
    elasticity = min(max(slope * middle / step, 0.0), 1.0 - 1e-9)
    wider = _wider(dispersion)
    reach = TUNING.sigmas * sqrt(wider * (middle + 1.0) / (1.0 - elasticity))
    lowest, highest = max(0.0, floor(middle - reach)), min(middle + reach, room)
    width = max(1.0, (highest - lowest) / TUNING.cells)
    states: Floats = lowest + width * np.arange(int((highest - lowest) / width + 1e-9) + 1, dtype=np.float64)
    between: Floats = np.maximum(states - (width - 1.0) / 2, 1.0)
    logs = width * np.cumsum(_odds(offered, np.maximum(np.interp(between, held, knots), least), between)) / wider
    mass = np.exp(logs - logs.max())
    # Beyond the last state they queue, and the pool gets no faster.
    full = offered * knots[-1] / room
    beyond = 0.0
    if highest >= room:
        beyond = float(mass[-1]) / max(1.0 - full ** (1.0 / wider), 1e-12) / width
        mass, states = mass[:-1], states[:-1]
    if not states.size:
        return Batches.overloaded()
    # Each pool holds the part of all requests that it holds in the middle of the distribution.
    parts = [max(group.held(step), 1e-9) for group in groups]
    roomy = np.zeros_like(states)
    for group, part in zip(groups, parts, strict=True):
        share = part / sum(parts)
        roomy += share * group.roomy(states * (share / group.workers), context)
    shares = mass * roomy / (mass.sum() + beyond)
    return Batches(
        step=step,
        elasticity=elasticity,
        steps=np.maximum(np.interp(states + 1.0, held, knots), least),
        shares=shares,
        waiting=min(max(1.0 - float(shares.sum()), 0.0), 1.0),
        spare_rate=rate / full - rate if full > 0.0 else inf,
    )


def blocked(
    rate: float,
    tokens: float,
    groups: Sequence[BatchGroup],
    *,
    tpot_seconds: float,
    wait_seconds: float,
    dispersion: float,
) -> float:
    """Return the share that is turned away when steps may not get longer than `tpot_seconds`: a loss system.

    The distribution of `batches`, cut off at the number of requests whose step takes that long. Where there is no room
    for so many, as many more queue as find some within `wait_seconds`, and the pool gets no faster. Bursts take up as
    much room as (1 + I)/2 requests at once (Hayward's approximation).
    """
    groups = [group for group in groups if group.workers > 0]
    capped = [group.cut(group.held(tpot_seconds) / group.workers) for group in groups]
    roomy = all(group.room < narrow.room * (1 + 1e-9) for group, narrow in zip(groups, capped, strict=True))
    capped = [group for group in capped if group.room > 0.0]
    if sum(group.workers * group.room for group in capped) < 1.0:
        return 1.0
    knots, held = _line(capped)
    wider, room = _wider(dispersion), held[-1]
    width = room / TUNING.cells
    middles: Floats = width * (np.arange(TUNING.cells, dtype=np.float64) + 0.5)
    growth = width * _odds(rate * tokens, np.interp(middles, held, knots), middles) / wider
    logs = np.cumsum(np.append(0.0, growth))
    mass = np.exp(logs - logs.max())
    # Between two states the density grows evenly in its logarithm; deep in overload it does so by a lot.
    inside = width * float(np.maximum(mass[1:], mass[:-1]) @ _mean(growth))
    last, overflow = float(mass[-1]), 0.0
    full = rate * tokens * knots[-1] / room
    if roomy and wait_seconds > 0.0 and full > 0.0:
        queue = wait_seconds * rate / full
        more = queue * log(full) / wider
        # Both in units of the greater end of the queue.
        inside = inside * exp(min(-more, 0.0)) + last * queue * float(_mean(np.array(more)))
        last *= exp(min(more, 0.0))
        overflow = 1.0 - 1.0 / full  # no more come in than leave
    return max(1.0 - exp(-last * wider / inside), overflow)


def _line(groups: Sequence[BatchGroup]) -> tuple[list[float], list[float]]:
    """Return steps, and how many requests all workers hold when theirs take as long: knots of a line between them."""
    knots = sorted({step for group in groups for step in group.steps})
    held = [sum(group.held(step) for group in groups) for step in knots]
    return knots, [*held[:-1], sum(group.workers * group.room for group in groups)]


def _wider(dispersion: float) -> float:
    """Return the requests of a burst, on average: the number in a pool varies by as much more."""
    return (1.0 + max(dispersion, 1.0)) / 2


def _odds(offered: float, steps: Floats, states: Floats) -> Floats:
    """Return the logarithm of how much likelier each state is than the one before it."""
    odds: Floats = np.log(np.maximum(offered * steps / states, 1e-300))
    return odds


def _mean(growth: Floats) -> Floats:
    """Return the mean of an exponential that grows, or falls, by e^`growth`, as a share of its greater end."""
    size = np.abs(growth) + 1e-12
    mean: Floats = -np.expm1(-size) / size
    return mean


def _middle(offered: float, knots: Sequence[float], held: Sequence[float]) -> tuple[float, float]:
    """Return the number of requests at which as many tokens leave as arrive, and how a step grows with it there."""
    count, step = 0.0, knots[0]
    for next_step, next_count in zip(knots, held, strict=True):
        if offered * next_step <= next_count:
            gain = next_count - count
            slope = (next_step - step) / gain if gain > 0.0 else 0.0
            # Between two knots a step grows evenly: middle = offered * (step + slope * (middle - count)).
            return offered * (step - slope * count) / (1.0 - offered * slope), slope
        count, step = next_count, next_step
    return count, 0.0


def normal(z: Floats) -> Floats:
    """Return the normal distribution function, to 0.0002 (Page 1977)."""
    values: Floats = 0.5 + 0.5 * np.tanh(sqrt(2 / pi) * z * (1.0 + 0.044715 * z * z))
    return values
