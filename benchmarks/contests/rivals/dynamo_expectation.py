"""What NVIDIA Dynamo's planner (1.6.1) expects of a worker: its capacity for a kind of request, and its latencies.

The planner fits its model to what engines report. Here it gets the engine's own speed, which a perfect fit would find.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fulcrum.capacity.speed import Speed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.speed import StepTimes
from fulcrum.simulation.worker import SimulatedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Predictions for requests of one mean length on workers of one speed."""

    speed: Speed
    times: StepTimes
    slo: LatencyTargets
    mixed: bool
    """Workers prefill and decode in the same steps."""
    isl_tokens: float
    osl_tokens: float
    """At least 1."""
    prefix_hit: float = 0.0
    """Share of the prompt tokens that workers find in their caches."""

    def rates(self) -> tuple[float, ...]:
        """Requests per second of one worker, by role: (prefill, decode), or (mixed,)."""
        if self.mixed:
            return (self._mixed_rate(),)
        tokens, context = self._computed_tokens, self._context_tokens
        batch = largest_batch(self.speed, self.slo.tpot_seconds, context)
        step_seconds = self.speed.decode_step_seconds(batch, batch * context)
        return 1 / self.speed.prefill_seconds(tokens, tokens * tokens), batch / (self.osl_tokens * step_seconds)

    def late_prompt(self, worker: SimulatedWorker) -> bool:
        """Report whether the next prompt on this worker would miss the TTFT."""
        batch, context = self._beside(worker, 1.0)
        return self._ttft_seconds(worker.queued_tokens, batch, context) > self.slo.ttft_seconds

    def late_token(self, worker: SimulatedWorker) -> bool:
        """Report whether one more request on this worker would miss the TPOT."""
        return self._itl_seconds(worker, 1.0) > self.slo.tpot_seconds

    def prompts_fit(self, worker: SimulatedWorker, share: float, *, sensitivity: float) -> bool:
        """Report whether `share` times this worker's queue costs less than `sensitivity` of what the TTFT leaves."""
        batch, context = self._beside(worker, share)
        own = self._ttft_seconds(0.0, batch, context)
        queued = self._ttft_seconds(worker.queued_tokens * share, batch, context) - own
        return queued < (self.slo.ttft_seconds - own) * sensitivity

    def answers_fit(self, worker: SimulatedWorker, share: float, *, sensitivity: float) -> bool:
        """Report whether `share` times this worker's requests fit into the KV cache and `sensitivity` of the TPOT."""
        queued_tokens = (len(worker.waiting) + worker.loading) * self.isl_tokens
        if (worker.context_tokens + queued_tokens) * share >= self.speed.kv_capacity_tokens:
            return False
        return self._itl_seconds(worker, share) < self.slo.tpot_seconds * sensitivity

    @property
    def _computed_tokens(self) -> float:
        return self.isl_tokens * (1 - self.prefix_hit)

    @property
    def _context_tokens(self) -> float:
        return self.isl_tokens + self.osl_tokens / 2

    def _mixed_rate(self) -> float:
        """Rate at the largest batch that keeps both promises, with room in each step for the prompts that follow."""
        budget, context = self.speed.max_batched_tokens, self._context_tokens
        best = 0.0
        for batch in range(1, max(1, min(self.speed.max_batch, int(self.speed.kv_capacity_tokens / context))) + 1):
            prompts = self._prompts_per_step(batch)
            step_seconds = self._step_seconds(batch, batch * context, prompts)
            ttft_seconds = self._ttft_seconds(prompts / (1 - self.prefix_hit or 1.0), batch, batch * context)
            late = step_seconds > self.slo.tpot_seconds or ttft_seconds > self.slo.ttft_seconds
            if batch > 1 and (late or prompts > budget - batch):
                break
            admitted = max(budget - batch, 1) / max(self._computed_tokens, 1.0)
            best = min(batch / self.osl_tokens, admitted) / step_seconds
            if late:
                break
        return best

    def _prompts_per_step(self, batch: float) -> float:
        """Prompt tokens of a mixed step while as many requests begin as end."""
        return min(batch * self._computed_tokens / self.osl_tokens, self.speed.max_batched_tokens)

    def _beside(self, worker: SimulatedWorker, share: float) -> tuple[float, float]:
        """Batch and context tokens that decode in the steps of a prompt."""
        return (worker.batch * share, worker.context_tokens * share) if self.mixed else (0.0, 0.0)

    def _ttft_seconds(self, queued_tokens: float, batch: float, context_tokens: float) -> float:
        """TTFT of the next request behind so many prompt tokens, beside a decode batch."""
        full, rest = divmod((queued_tokens + self.isl_tokens) * (1 - self.prefix_hit), self.speed.max_batched_tokens)
        seconds = full * self._step_seconds(batch, context_tokens, self.speed.max_batched_tokens) if full else 0.0
        return seconds + (self._step_seconds(batch, context_tokens, rest) if rest else 0.0)

    def _itl_seconds(self, worker: SimulatedWorker, share: float) -> float:
        """Time of a decode step with this worker's requests times `share`, and one more.

        What waits on a mixed worker are prompts: they count only where the worker takes over more than its own.
        """
        queued = 0 if self.mixed and share == 1.0 else len(worker.waiting) + worker.loading
        batch = (worker.batch + queued) * share + 1
        context = (worker.context_tokens + queued * self.isl_tokens) * share + self._context_tokens
        return self._step_seconds(batch, context, self._prompts_per_step(batch) if self.mixed else 0.0)

    def _step_seconds(self, batch: float, context_tokens: float, prompt_tokens: float) -> float:
        squared = ceil(prompt_tokens * self._computed_tokens)
        size = min(ceil(batch), self.speed.max_batch)
        return self.times.step_seconds(size, ceil(context_tokens), ceil(prompt_tokens), squared)


def largest_batch(speed: Speed, tpot_seconds: float, context_tokens: float) -> int:
    """Return the most requests of this mean context that fit into the KV cache and keep a step within the promise."""
    low, high = 1, max(1, min(speed.max_batch, int(speed.kv_capacity_tokens / context_tokens)))
    while low < high:
        middle = (low + high + 1) // 2
        if speed.decode_step_seconds(middle, middle * context_tokens) <= tpot_seconds:
            low = middle
        else:
            high = middle - 1
    return low
