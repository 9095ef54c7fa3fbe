"""`placement.performance.Performance` by fluid rates and square-root staffing, as the balance reckons.

A worker carries what `performance.rates` says of it at full load; `performance.staffing` says how much less keeps waits
short. Pools of one role are one queue of all their servers: ranks that prefill one prompt after another, places for
answers that are decoded at once. How good a layout is, a simulation says; these estimates say which ones to simulate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.eligible import eligible, length_at
from fulcrum.performance.rates import pull_seconds, unit_rates
from fulcrum.placement.performance import Stations
from fulcrum.placement.queue import NOTHING, Queue, highest_rate, linked, together

_NORMAL: Final = NormalDist()
_POINTS: Final = 16
"""Lengths that stand for all: the longest has 3 % of the prompts."""


@dataclass(frozen=True, slots=True)
class FluidEstimates:
    """Rates inside `slo`, for requests of the lengths of `demand` (its rate does not matter)."""

    demand: Demand
    slo: LatencyTargets
    turns_away: bool = False
    """Requests that would be late are turned away at arrival, as admission does. False: every request is served."""
    _known: dict[object, Queue] = field(default_factory=dict, compare=False, repr=False)

    @property
    def target(self) -> float:
        """Return the promised share."""
        return self.slo.attainment

    def alone(self, stations: Stations, role: Role) -> float:
        """Return the rate that workers of one role carry, with plenty of the other role."""
        if role is Role.MIXED:
            return self._mixed(stations)
        # With plenty of decode workers steps are short.
        return self._highest([self._prefill(stations, 0.0, {}) if role is Role.PREFILL else self._decode(stations, {})])

    def split(self, prefill: Stations, decode: Stations) -> float:
        """Return the rate inside both promises."""
        queues = self._both(prefill, decode)
        return highest_rate(lambda rate: self._kept(rate, queues(rate)), self.target, most=self._most(queues(0.0)))

    def share(self, rate: float, prefill: Stations, decode: Stations) -> float:
        """Return the share of `rate` requests/s that is inside both promises."""
        return self._kept(rate, self._both(prefill, decode)(rate))

    def most(self, speed: WorkerSpeed, role: Role, count: int) -> float:
        """Return the rate that no worker exceeds, whatever stands beside it, of at most `count` workers of its kind."""
        if role is Role.MIXED:
            return self._mixed([(speed, count)]) / count
        queue = self._queue(speed, role, 0.0)
        return queue.rate / (self.target if self.turns_away else 1.0)

    def floor(self, speeds: Sequence[WorkerSpeed]) -> tuple[float, float]:
        """Return the shortest TTFT and TPOT (seconds) that the promised share can have alone on any of `speeds`."""
        longest = length_at(self.target, self.demand.isl_tokens, self.demand.isl_cv2)
        context = self.demand.isl_tokens + self.demand.osl_tokens / 2
        return (
            min(self._first_seconds(speed, longest) for speed in speeds),
            min(speed.decode_step_seconds(1, context) for speed in speeds),
        )

    def _both(self, prefill: Stations, decode: Stations) -> Callable[[float], list[Queue]]:
        """Return what the queues of prefill and decode workers that serve together are at a rate.

        The first token waits for one step, which is longer where more answers are decoded at once.
        """
        sending, receiving = self._links(prefill, decode, Role.DECODE), self._links(decode, prefill, Role.PREFILL)
        answers = self._decode(decode, receiving)
        first = min(self._first_seconds(speed, self.demand.isl_tokens) for speed, _ in prefill)

        def queues(rate: float) -> list[Queue]:
            step = self._step(decode, answers.busy(rate))
            waits = (max(0.0, self.slo.ttft_seconds - first - step) / 2,)
            return [self._prefill(prefill, step, sending), replace(answers, patience_seconds=waits)]

        return queues

    def _kept(self, rate: float, queues: Sequence[Queue]) -> float:
        """Return the share of `rate` requests/s that passes through all queues in time."""
        share = 1.0
        for queue in queues:
            # Requests that are turned away for their first token never decode.
            share *= queue.kept(rate * (share if self.turns_away else 1.0), turns_away=self.turns_away)
        return share

    def _highest(self, queues: Sequence[Queue]) -> float:
        """Return the highest rate at which the promised share passes through all queues in time."""
        return highest_rate(lambda rate: self._kept(rate, queues), self.target, most=self._most(queues))

    def _most(self, queues: Sequence[Queue]) -> float:
        """Return the rate that the servers of no queue exceed."""
        if any(queue.share < self.target for queue in queues):
            return 0.0
        if not self.turns_away:
            return min(queue.rate for queue in queues)
        return min(queue.rate / queue.share for queue in queues) / self.target

    def _links(self, ends: Stations, others: Stations, role: Role) -> dict[WorkerSpeed, float]:
        """Return for how many requests/s a link at one end has time: moving KV takes as long as its slower end.

        `others` have the role at the other end, each as often as it carries requests.
        """
        carried = [(count * self._queue(speed, role, 0.0).rate, speed) for speed, count in others]
        total = sum(rate for rate, _ in carried)
        if total <= 0.0:
            return {}
        moved = [(rate / total, pull_seconds(self.demand, speed)) for rate, speed in carried]
        found = {}
        for speed, _ in ends:
            own = pull_seconds(self.demand, speed)
            seconds = sum(share * max(own, other) for share, other in moved)
            found[speed] = speed.ranks / max(seconds, 1e-9)
        return found

    def _prefill(self, stations: Stations, step_seconds: float, links: Mapping[WorkerSpeed, float]) -> Queue:
        """Return the queue for prefill of all workers, or of the faster ones where the others would make it worse.

        A router keeps no worker free for long prompts that are to come: each pool gets prompts as they come.
        """
        pools = [
            (linked(self._queue(speed, Role.PREFILL, step_seconds), links.get(speed)), count)
            for speed, count in stations
        ]
        pools = sorted((pool for pool in pools if pool[0].rate > 0.0), key=lambda pool: -pool[0].each)
        best, carried, queue = NOTHING, -1.0, NOTHING
        for each, count in pools:
            queue = together(queue, replace(each, servers=count * each.servers))
            if len(pools) == 1:
                return queue
            if (found := self._highest([queue])) > carried:
                best, carried = queue, found
        return best

    def _decode(self, stations: Stations, links: Mapping[WorkerSpeed, float]) -> Queue:
        """Return the queue for decode: a request may wait half of the TTFT."""
        queue = NOTHING
        for speed, count in stations:
            each = linked(self._queue(speed, Role.DECODE, 0.0), links.get(speed))
            if each.rate > 0.0:
                queue = together(queue, replace(each, servers=count * each.servers))
        return queue

    def _mixed(self, stations: Stations) -> float:
        """Return the rate of workers that do both, each pool with its own requests."""
        found = 0.0
        for speed, count in stations:
            prompts = self._queue(speed, Role.PREFILL, 0.0)
            if prompts.rate > 0.0 and speed.decode_step_seconds(1.0, self._context) <= self.slo.tpot_seconds:
                prompts = replace(prompts, servers=count * prompts.servers)
                kept = partial(self._kept_mixed, speed, prompts)
                paced = self.demand.osl_tokens * self.slo.tpot_seconds * (self.target if self.turns_away else 1.0)
                answers = prompts.servers * self._room(speed, self.slo.tpot_seconds) / paced
                found += highest_rate(kept, self.target, most=min(prompts.rate, answers))
        return found

    def _kept_mixed(self, speed: WorkerSpeed, prompts: Queue, rate: float) -> float:
        """Return the share that is in time: prompts make steps longer, so that fewer answers keep the promise."""
        room = self._room(speed, self.slo.tpot_seconds * max(1.0 - rate / prompts.rate, 0.0))
        if room < 1.0:
            return 0.0
        answers = Queue(
            servers=prompts.servers * room,
            each=1.0 / (self.demand.osl_tokens * self.slo.tpot_seconds),
            patience_seconds=tuple(seconds / 2 for seconds in prompts.patience_seconds),
            variability=(self.demand.dispersion + 1.0) / 2,
        )
        return self._kept(rate, [prompts, answers])

    @property
    def _context(self) -> float:
        """Return the tokens of a request at a random moment of its answer: long answers are met more often."""
        return self.demand.isl_tokens + self.demand.osl_tokens * (1 + self.demand.osl_cv2) / 2

    def _room(self, speed: WorkerSpeed, step_seconds: float) -> float:
        """Return how many answers a rank decodes in steps of so many seconds."""
        return min(speed.decode_batch(step_seconds, self._context), speed.kv_capacity_tokens / self._context)

    def _step(self, stations: Stations, load: float) -> float:
        """Return the longest step of workers of whose places the share `load` is taken, which keep their promise."""
        found = 0.0
        for speed, _ in stations:
            batch = max(load * self._room(speed, self.slo.tpot_seconds), 1.0)
            found = max(found, min(speed.decode_step_seconds(batch, batch * self._context), self.slo.tpot_seconds))
        return found

    def _queue(self, speed: WorkerSpeed, role: Role, step_seconds: float) -> Queue:
        """Return the queue of one worker. What no step adds to is asked for again and again."""
        if step_seconds > 0.0:
            return self._of_prompts(speed, step_seconds)
        if (speed, role) not in self._known:
            found = self._of_prompts(speed, 0.0) if role is Role.PREFILL else self._of_answers(speed)
            self._known[speed, role] = found
        return self._known[speed, role]

    def _of_prompts(self, speed: WorkerSpeed, step_seconds: float) -> Queue:
        room = self.slo.ttft_seconds - step_seconds
        longest = self._longest(speed, room)
        if longest < 1:
            return NOTHING
        share, short = eligible(self.demand, "", {"": PoolAdmits(max_prompt_tokens=longest)})
        if share <= 0.0:
            return NOTHING
        taken = short if self.turns_away else self.demand
        rates = unit_rates(speed, Load.of(taken), self.slo)
        each = 1.0 / (rates.prompts / rates.prefill + self._chunk_seconds(speed, taken.isl_tokens))
        return Queue(
            servers=rates.prompts,
            each=each,
            patience_seconds=tuple(
                max(room - self._first_seconds(speed, min(tokens, longest)), 0.0) for tokens in self._lengths(share)
            ),
            variability=(self.demand.dispersion + taken.isl_cv2) / 2,
            share=share,
        )

    def _lengths(self, share: float) -> list[float]:
        """Return lengths (tokens) of the shortest prompts, of which they are such a share, each equally likely."""
        mean, cv2 = self.demand.isl_tokens, self.demand.isl_cv2
        if cv2 == 0.0:
            return [mean]
        return [length_at(share * (point + 0.5) / _POINTS, mean, cv2) for point in range(_POINTS)]

    def _of_answers(self, speed: WorkerSpeed) -> Queue:
        if speed.decode_step_seconds(1.0, self._context) > self.slo.tpot_seconds:
            return NOTHING
        if speed.kv_capacity_tokens < self._context:
            return NOTHING
        rates = unit_rates(speed, Load.of(self.demand), self.slo)
        return Queue(
            servers=rates.answers,
            each=rates.decode / rates.answers,
            patience_seconds=(self.slo.ttft_seconds / 2,),
            variability=(self.demand.dispersion + 1.0) / 2,
        )

    def _longest(self, speed: WorkerSpeed, seconds: float) -> int:
        """Return the longest prompt that an idle worker's memory holds, with its first token within so many seconds."""
        low, high = 0, min(1 << 20, int(speed.kv_capacity_tokens)) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._first_seconds(speed, middle) <= seconds else (low, middle)
        return low

    def _first_seconds(self, speed: WorkerSpeed, tokens: float) -> float:
        """Return how long an idle worker takes for a prompt, and its KV to another worker."""
        hit = self.demand.prefix_hit
        fresh, squared = tokens * (1 - hit), tokens**2 * (1 - hit**2)
        return (
            speed.prefill_seconds(fresh, squared) + self._chunk_seconds(speed, tokens) + speed.transfer_seconds(tokens)
        )

    def _chunk_seconds(self, speed: WorkerSpeed, tokens: float) -> float:
        """Return what the steps of a prompt beyond the first one cost."""
        fresh = tokens * (1 - self.demand.prefix_hit)
        return max(fresh / speed.max_batched_tokens - 1.0, 0.0) * speed.coefficients.prefill_a
