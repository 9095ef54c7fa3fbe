"""Workers that prefill and decode in the same steps (chunked prefill)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing.batch import Batches, BatchGroup, Context, batch_group, batches, blocked
from fulcrum.placement.queueing.decode import tpot_inside
from fulcrum.placement.queueing.lengths import length_points
from fulcrum.placement.queueing.prefill import PrefillGroup, PromptTime, Stations, groups_attainment, prompt_time
from fulcrum.placement.queueing.search import largest_share


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAttainment:
    """Shares of requests, 0 to 1."""

    ttft: float
    tpot: float
    joint: float
    """Both hold; taken as independent of each other on each kind of worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """A pool and what prefill does to it."""

    demand: Demand
    """Its part of all requests, drawn by chance."""
    speed: WorkerSpeed
    workers: int
    share: float
    """Of all requests."""
    time: PromptTime
    """Seconds that a prompt adds to steps, without any constant."""
    square: float
    """Mean square of the seconds that a prompt adds, its part of a greater constant included."""
    busy: float
    """Share of a worker's time that goes into prompts."""

    def decoding(self, context: Context) -> BatchGroup:
        """Return the pool as answers see it: prompts between its steps make them longer."""
        return batch_group(self.speed, self.workers, context, stretch=1.0 / (1.0 - self.busy))

    def prefilling(self, step_seconds: float, *, transfer_base: float) -> PrefillGroup:
        """Return the pool as a prompt sees it, that carries a decode step with each of its own."""
        a, idle = self.speed.coefficients.prefill_a, self.speed.idle_step_seconds
        return PrefillGroup(
            time=replace(self.time, constant=max(step_seconds + max(a - idle, 0.0), a)),
            workers=self.workers,
            most_sharing=self.speed.max_batch,
            transfer_base=transfer_base,
            transfer_per_token=0.0,
        )


def mixed_attainment(
    demand: Demand, stations: Stations, *, ttft_seconds: float, tpot_seconds: float, wait_seconds: float = 0.0
) -> MixedAttainment:
    """Return the shares of requests inside the SLO on workers that do both roles; no KV is transferred.

    A place in the batch and KV memory must be there within `wait_seconds`.

    Prompts take `busy` of a worker's time, so that decode steps are 1 / (1 - busy) times as long on average, and as
    uneven as the prompts between them are. A prompt waits for the step under way, and pays for a decode step with each
    of its own. The router counts all requests of a worker and not its prompts, so that prompts queue about halfway
    between each worker for itself and one queue for all.
    """
    pools = _shared(demand, stations)
    ttft = tpot = joint = 0.0
    for pool in pools if all(pool.busy < 1.0 for pool in pools) else ():
        in_pace = _in_pace(pool, tpot_seconds=tpot_seconds, wait_seconds=wait_seconds)
        if in_pace is None:
            return MixedAttainment(ttft=0.0, tpot=0.0, joint=0.0)
        step, inside = in_pace
        in_time = _in_time(pool, step, ttft_seconds=ttft_seconds)
        ttft += pool.share * in_time
        tpot += pool.share * inside
        joint += pool.share * in_time * inside
    return MixedAttainment(ttft=min(ttft, 1.0), tpot=min(tpot, 1.0), joint=min(joint, 1.0))


def _in_pace(pool: _Shared, *, tpot_seconds: float, wait_seconds: float) -> tuple[float, float] | None:
    """Return the mean step (s) of a pool and the share of its requests inside their TPOT; None: it cannot keep up."""
    own, context = pool.demand, Context.of(pool.demand)
    groups = [pool.decoding(context)]
    state = batches(own.rate, _later_tokens(own), groups, context, dispersion=own.dispersion)
    if state.waiting >= 1.0:
        return None
    jitter = own.rate / pool.workers * state.step * pool.square / (1.0 - pool.busy) ** 2
    jitter = _jitter(state, jitter=jitter * (0.5 + 2.5 / pool.workers**2), tokens=max(own.osl_tokens, 1.0))
    inside = tpot_inside(own, state, groups, tpot_seconds=tpot_seconds, wait_seconds=wait_seconds, jitter=jitter)
    return state.step, inside


def _in_time(pool: _Shared, step_seconds: float, *, ttft_seconds: float) -> float:
    """Return the share of a pool's requests inside their TTFT."""
    own, workers = pool.demand, pool.workers
    step = step_seconds * (1.0 - pool.busy) * min(own.rate * _later_tokens(own) * step_seconds / workers, 1.0)
    together = pool.prefilling(step, transfer_base=step / 2)
    alone = groups_attainment(_part_of(own, 1.0 / workers), [replace(together, workers=1)], seconds=ttft_seconds)
    return alone if workers == 1 else (alone + groups_attainment(own, [together], seconds=ttft_seconds)) / 2


def _later_tokens(demand: Demand) -> float:
    """Return the tokens of an answer beyond its first one, which the prefill makes."""
    return max(demand.osl_tokens - 1.0, 0.0)


def _part_of(demand: Demand, part: float) -> Demand:
    """Return what is drawn from a stream by chance: it comes less in bursts than the whole."""
    return replace(demand, rate=demand.rate * part, dispersion=1.0 + (demand.dispersion - 1.0) * part)


def mixed_admitted(
    demand: Demand, stations: Stations, *, ttft_seconds: float, tpot_seconds: float, wait_seconds: float = 0.0
) -> float:
    """Return the share of requests that can be let in so that no step gets longer than `tpot_seconds`, and are in time.

    A loss system as in `decode_admitted`, whose steps are as much longer as the prompts that are let in make them: the
    share at which as many fit as are let in. What single prompts add to single steps is left out, so that it is an
    upper bound; to let requests in by chance (`mixed_attainment` of a smaller load) is a lower one.
    """
    context = Context.of(demand)

    def pools_at(share: float) -> list[_Shared]:
        return _shared(replace(demand, rate=demand.rate * share), stations)

    def fitting(share: float) -> float:
        pools = pools_at(share)
        if not pools or any(pool.busy >= 1.0 for pool in pools):
            return 0.0
        return 1.0 - blocked(
            demand.rate,
            _later_tokens(demand),
            [pool.decoding(context) for pool in pools],
            tpot_seconds=tpot_seconds,
            wait_seconds=wait_seconds,
            dispersion=demand.dispersion,
        )

    let_in = largest_share(lambda share: fitting(share) - share)
    in_time = 0.0
    for pool in pools_at(let_in) if let_in > 0.0 else ():
        group = pool.prefilling(pool.speed.idle_step_seconds, transfer_base=tpot_seconds / 2)
        own = replace(pool.demand, dispersion=demand.dispersion)
        in_time += pool.share * groups_attainment(own, [group], seconds=ttft_seconds, early=True)
    return let_in * min(in_time, 1.0)


def _jitter(state: Batches, *, jitter: float, tokens: float) -> float:
    """Return the variance (s^2) that prompts add to a step, averaged over a request's `tokens`.

    What prompts take out of a residence varies as busy periods do; a router that evens out numbers evens out half of
    it, and one worker alone sways more (fitted to simulation). A burst of arrivals both takes time
    for its prompts and leaves more requests to decode: the deviations add up.
    """
    mean = float(state.shares @ state.steps) / (1.0 - state.waiting)
    spread = float(state.shares @ np.square(state.steps - mean)) / (1.0 - state.waiting)
    return jitter + 2.0 * sqrt(jitter * spread * tokens)


def _shared(demand: Demand, stations: Stations) -> list[_Shared]:
    """Return the pools, with requests shared out by what each could do if it never rested."""
    context = Context.of(demand)
    lengths, weights = length_points(max(demand.isl_tokens, 1.0), demand.isl_cv2)
    used = [(speed, workers) for speed, workers in stations if workers > 0]
    times, able = [], []
    for speed, workers in used:
        times.append(
            prompt_time(speed, constant=0.0, prefix_hit=demand.prefix_hit, budget_tokens=speed.max_batched_tokens)
        )
        full = batch_group(speed, 1, context)
        decoding = demand.osl_tokens * (full.steps[-1] - full.idle) / max(full.room, 1e-9)
        able.append(workers / (float(weights @ times[-1].seconds(lengths)) + decoding + 1e-12))
    pools = []
    for (speed, workers), time, part in zip(used, times, able, strict=True):
        share, work = part / sum(able), time.seconds(lengths)
        rate = demand.rate * share / workers
        # A step with a prompt has the greater of the two constants, which prompts that come meanwhile share.
        extra = max(speed.coefficients.prefill_a - speed.idle_step_seconds, 0.0) / (1.0 + rate * float(weights @ work))
        work = work + extra * np.maximum(1.0, lengths * time.chunks)
        pools.append(
            _Shared(
                demand=_part_of(demand, share),
                speed=speed,
                workers=workers,
                share=share,
                time=time,
                square=float(weights @ np.square(work)),
                busy=rate * float(weights @ work),
            )
        )
    return pools
