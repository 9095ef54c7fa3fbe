"""A discrete-event reference of what the estimators estimate: workers that step as vLLM does, behind a router.

Independent of the estimators: it knows requests, token budgets, KV memory and step times, and no queueing theory.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests in order of arrival."""

    arrivals: Floats
    prompts: Integers
    outputs: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Per request, in order of arrival, in seconds."""

    waits: Floats
    """From arrival to the first step that works on the request."""
    first: Floats
    """From arrival to the end of the step that makes the first token."""
    between: Floats
    """Mean time between tokens; 0 for a single token."""


@dataclass(slots=True)
class _Engine:
    speed: WorkerSpeed
    waiting: deque[int] = field(default_factory=deque)
    filling: list[int] = field(default_factory=list)
    """Admitted, prompt not yet complete, in order of admission."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (number of the step that makes the last token, request)."""
    admitted: list[int] = field(default_factory=list)
    """Requests that generate, by admission; some of them may have ended."""
    steps: int = 0
    context: int = 0
    """Tokens in KV memory of those that generate."""
    filled: int = 0
    """KV memory promised to prompts that are being filled."""
    busy: bool = False


class ReferenceQueue:
    """Workers of one role (`prefill`, `decode` or `mixed`) and their requests.

    A step takes one token of every generating request and fills the rest of its token budget with prompts, first come
    first served, split where they do not fit. A request is admitted when its prompt fits into KV memory; when
    generation outgrows it, the youngest request is preempted and computed again. Prefix hits save tokens, not memory.
    """

    def __init__(
        self,
        requests: Requests,
        workers: Sequence[WorkerSpeed],
        *,
        role: str,
        hit: float = 0.0,
        by_tokens: bool = False,
    ) -> None:
        self.arrivals = requests.arrivals.tolist()
        self.prompts = requests.prompts.tolist()
        self.outputs = requests.outputs.tolist()
        self.role = role
        self.engines = [_Engine(speed) for speed in workers]
        self.loads = [0] * len(self.engines)
        self.weights = self.prompts if by_tokens else [1] * len(self.prompts)
        count = len(self.arrivals)
        self.offsets = [int(hit * length) if role != "decode" else length - 1 for length in self.prompts]
        """Tokens of the prompt that are in KV memory already. A decode worker computes the last one again."""
        self.lengths = list(self.prompts)
        """Tokens to fill: the prompt, and what was generated before a preemption."""
        self.made = [0] * count
        self.base = [0] * count
        self.start = [-1.0] * count
        self.first = [-1.0] * count
        self.last = [-1.0] * count
        self.preemptions = 0
        self._events: list[tuple[float, int]] = []
        self._plans: list[list[int]] = [[] for _ in self.engines]

    def run(self) -> Outcome:
        """Serve every request."""
        events, loads = self._events, self.loads
        for request, now in enumerate(self.arrivals):
            while events and events[0][0] <= now:
                self._finish(*heapq.heappop(events))
            index = loads.index(min(loads))
            loads[index] += self.weights[request]
            engine = self.engines[index]
            engine.waiting.append(request)
            if not engine.busy:
                self._begin(index, now)
        while events:
            self._finish(*heapq.heappop(events))
        arrivals = np.array(self.arrivals)
        first, last = np.array(self.first), np.array(self.last)
        return Outcome(
            waits=np.array(self.start) - arrivals,
            first=first - arrivals,
            between=(last - first) / np.maximum(np.array(self.outputs) - 1, 1),
        )

    def _begin(self, index: int, now: float) -> None:
        """Start the engine's next step, or let it rest."""
        engine = self.engines[index]
        speed, k = engine.speed, engine.speed.coefficients
        holds = self.role != "prefill"
        while holds and engine.ends and engine.context + engine.filled > speed.kv_capacity_tokens:
            if len(engine.ends) == 1 and not engine.filling:
                break
            self._preempt(engine)
        generating = len(engine.ends)
        budget = speed.max_batched_tokens - generating
        seconds = 0.0
        if generating:
            seconds = k.decode_a + k.decode_b * generating + k.decode_c * engine.context
        filled, fill_seconds, done = self._fill(engine, now, budget=budget, generating=generating)
        if not generating and not filled:
            engine.busy = False
            return
        if filled:
            constant = k.decode_a if self.role == "decode" else k.prefill_a
            seconds += fill_seconds + (max(0.0, constant - k.decode_a) if generating else constant)
        engine.busy = True
        self._plans[index] = done
        heapq.heappush(self._events, (now + seconds, index))

    def _fill(self, engine: _Engine, now: float, *, budget: int, generating: int) -> tuple[int, float, list[int]]:
        """Spend a step's budget on prompts: how many, their seconds, and those that are then complete."""
        speed, k = engine.speed, engine.speed.coefficients
        holds = self.role != "prefill"
        done = []
        fill_seconds = 0.0
        position = 0
        while budget > 0:
            if position == len(engine.filling):
                if not engine.waiting or generating + position >= speed.max_batch:
                    break
                request = engine.waiting[0]
                length = self.lengths[request]
                used = engine.context + engine.filled
                if holds and used and used + length > speed.kv_capacity_tokens:
                    break
                engine.waiting.popleft()
                engine.filling.append(request)
                engine.filled += length
                if self.start[request] < 0:
                    self.start[request] = now
            request = engine.filling[position]
            offset, length = self.offsets[request], self.lengths[request]
            chunk = min(budget, length - offset)
            end = offset + chunk
            if self.role == "decode" and chunk == 1:
                fill_seconds += k.decode_b + k.decode_c * length
            else:
                fill_seconds += k.prefill_b * chunk + k.prefill_c * (end * end - offset * offset)
            budget -= chunk
            self.offsets[request] = end
            if end >= length:
                done.append(request)
            position += 1
        return position, fill_seconds, done

    def _finish(self, now: float, index: int) -> None:
        """Book the step that ends now, and start the next one."""
        engine = self.engines[index]
        engine.steps += 1
        engine.context += len(engine.ends)
        ends = engine.ends
        while ends and ends[0][0] <= engine.steps:
            request = heapq.heappop(ends)[1]
            engine.context -= self.prompts[request] + self.outputs[request]
            self.last[request] = now
            self.loads[index] -= self.weights[request]
        done = self._plans[index]
        if done:
            engine.filling = [request for request in engine.filling if request not in set(done)]
        for request in done:
            length = self.lengths[request]
            engine.filled -= length
            if self.first[request] < 0:
                self.first[request] = now
            made = length - self.prompts[request] + 1
            if self.role == "prefill" or made >= self.outputs[request]:
                self.last[request] = now
                self.loads[index] -= self.weights[request]
                continue
            engine.context += length + 1
            self.base[request] = engine.steps - made
            heapq.heappush(ends, (engine.steps + self.outputs[request] - made, request))
            engine.admitted.append(request)
        self._begin(index, now)

    def _preempt(self, engine: _Engine) -> None:
        """Throw out the youngest: its tokens are computed again when there is room."""
        self.preemptions += 1
        if engine.filling:
            request = engine.filling.pop()
            engine.filled -= self.lengths[request]
        else:
            alive = {request for _, request in engine.ends}
            while engine.admitted[-1] not in alive:
                engine.admitted.pop()
            request = engine.admitted.pop()
            engine.ends = [entry for entry in engine.ends if entry[1] != request]
            heapq.heapify(engine.ends)
            self.lengths[request] = self.prompts[request] + engine.steps - self.base[request]
            engine.context -= self.lengths[request]
        self.offsets[request] = 0
        engine.waiting.appendleft(request)


def draw_requests(demand: Demand, *, count: int, seed: int) -> Requests:
    """Poisson arrivals with log-normal lengths, at least one token each."""
    rng = np.random.default_rng(seed)

    def lengths(mean: float, cv2: float) -> Integers:
        sigma = np.sqrt(np.log1p(cv2))
        drawn = mean * np.exp(sigma * rng.standard_normal(count) - sigma * sigma / 2)
        rounded: Integers = np.maximum(np.rint(drawn), 1).astype(np.int64)
        return rounded

    return Requests(
        arrivals=np.cumsum(rng.exponential(1 / demand.rate, count)),
        prompts=lengths(demand.isl_tokens, demand.isl_cv2),
        outputs=lengths(demand.osl_tokens, demand.osl_cv2),
    )


def settled(values: Floats, *, warm_up: float = 0.1) -> Floats:
    """Drop the first part of a run, in which the queue fills up from empty, and the last, in which it empties."""
    return values[int(len(values) * warm_up) : int(len(values) * 0.95)]
