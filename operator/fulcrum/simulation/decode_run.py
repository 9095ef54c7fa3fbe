"""A run of decode steps in closed form.

As long as no request joins or leaves, k steps of B requests with contexts that sum up to C take
`k*base + slope*(k*C + B*k*(k-1)/2)` seconds: each context grows by one per step. A run ends at the first step at which
something changes, so skipping the steps between changes no result.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

from fulcrum.simulation.kv_blocks import KvBlocks
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.speed import StepTimes


class DecodeRun:
    """The requests of one worker that decode, and the step at which each of them ends."""

    __slots__ = ("_base", "_ends", "_kv", "_slope", "batch", "context_tokens", "step")

    def __init__(self, times: StepTimes, kv: KvBlocks) -> None:
        self._base, self._slope = times.base, times.slope
        self._kv = kv
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self.batch = 0
        self.context_tokens = 0
        """Sum of the contexts in the next step."""
        self.step = 0
        """Number of the next step."""

    def join(self, request: SimulatedRequest) -> None:
        """Decode from the next step on."""
        request.joined_step = self.step
        self.batch += 1
        self.context_tokens += request.context
        self._kv.join(request.context, self.step)
        heappush(self._ends, (self.step + request.left, request.index, request))

    def leave(self, request: SimulatedRequest) -> None:
        """Decode no longer; `context` and `left` become what they are now, and the blocks are given back."""
        taken = self.step - request.joined_step
        request.joined_step = -1
        request.context += taken
        request.left -= taken
        self.batch -= 1
        self.context_tokens -= request.context
        self._kv.leave(request.context, self.step)
        self._kv.give_back(request, self._kv.blocks_of(request, request.context))

    def drop(self, request: SimulatedRequest) -> None:
        """Leave before the end."""
        self._ends = [entry for entry in self._ends if entry[2] is not request]
        heapify(self._ends)
        self.leave(request)

    def advance(self, steps: int) -> list[SimulatedRequest]:
        """Take steps; returns the requests that ended with the last of them, which have left."""
        self._kv.grow(self.step, steps)
        self.step += steps
        self.context_tokens += self.batch * steps
        ended: list[SimulatedRequest] = []
        while self._ends and self._ends[0][0] <= self.step:
            request = heappop(self._ends)[2]
            self.leave(request)
            ended.append(request)
        return ended

    def steps_until_change(self) -> int:
        """Return the steps until the first request ends or the KV blocks run out."""
        return self._kv.steps_within(self.step, self._ends[0][0] - self.step)

    def seconds(self, steps: int) -> float:
        """Return the time of the next `steps` steps."""
        batch = self.batch
        contexts = steps * self.context_tokens + batch * (steps * (steps - 1) // 2)
        return steps * self._base[batch] + self._slope[batch] * contexts

    @property
    def growth_seconds(self) -> float:
        """How much longer each step takes than the one before."""
        return self._slope[self.batch] * self.batch

    def boundary(self, elapsed_seconds: float) -> tuple[int, float]:
        """Return the first step boundary not before `elapsed_seconds`, and when it is: the root of a quadratic.

        The step that began is always finished, so it is at least the first.
        """
        slope = self._slope[self.batch]
        quadratic = slope * self.batch / 2
        linear = self._base[self.batch] + slope * self.context_tokens - quadratic
        root = linear + math.sqrt(max(0.0, linear * linear + 4 * quadratic * elapsed_seconds))
        steps = max(1, math.ceil(2 * elapsed_seconds / root)) if root > 0 else 1
        # The root is exact but for rounding.
        while steps > 1 and self.seconds(steps - 1) >= elapsed_seconds:
            steps -= 1
        while (seconds := self.seconds(steps)) < elapsed_seconds and root > 0:
            steps += 1
        return steps, seconds
