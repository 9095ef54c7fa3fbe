"""How fast the engine of a worker is, in the numbers that are read for each request. Pure."""

from __future__ import annotations

from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.decode_curve import Segments, segments_of
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed

NOMINAL_SPEED: Final = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.01, prefill_b=1e-4, prefill_c=0.0, decode_a=0.02, decode_b=1e-4, decode_c=1e-7
    ),
    kv_capacity_tokens=0,
    source=SpeedSource.ROOFLINE,
)
"""Stands in while a worker's speed is unknown: enough to compare workers by, never to promise anything by."""


class EngineSpeed:
    """The speed and the room of an engine; it never changes."""

    def __init__(self, speed: WorkerSpeed) -> None:
        self.known = speed is not NOMINAL_SPEED
        self.speed = speed
        # Copied: these are read several times for each request.
        k = speed.coefficients
        self.prefill_a, self.prefill_c = k.prefill_a, k.prefill_c
        # Times are divided by a step, whatever a profile leaves out.
        self.least_step = max(speed.idle_step_seconds, 1e-6)
        self.curve: Segments | None = segments_of(k.decode_curve) if len(k.decode_curve) > 1 else None
        self.decode_b, self.decode_c = k.decode_b, k.decode_c
        self.kv_capacity = float(speed.kv_capacity_tokens)
        self.max_batch = float(speed.max_batch)
        self.chunk_tokens = float(speed.max_batched_tokens)
        # Short prompts share a step, so each bears its part of the base.
        self.work_per_token = k.prefill_a / speed.max_batched_tokens + k.prefill_b

    def decode_line(self, batch: float) -> tuple[float, float, float]:
        """Return a, b, c of `a + b * batch + c * context`, the seconds of a decode step of about so many requests."""
        if self.curve is not None:
            return self.curve.line(batch)
        return self.least_step, self.decode_b, self.decode_c

    def work_seconds(self, prompt_tokens: float, cached_tokens: float, cv2: float = 0.0) -> float:
        """Time that a prompt takes of a busy worker.

        With `cv2`, the squared coefficient of variation of lengths, it is the mean over prompts of that mean length.
        """
        new_tokens = prompt_tokens - cached_tokens
        return new_tokens * (self.work_per_token + self.prefill_c * (1 + cv2) * (prompt_tokens + cached_tokens))

    def step_share_of(self, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
        """Part of its longest decode step that a request takes, 0 to 1."""
        context = prompt_tokens + output_tokens / 2
        if self.curve is not None:
            most = self.speed.decode_batch(tpot_seconds, context)
            return 1.0 / most if most > 1.0 else 1.0
        room = tpot_seconds - self.least_step
        return min((self.decode_b + self.decode_c * context) / room, 1.0) if room > 0 else 1.0

    def share_of(self, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
        """Part of it that a request takes, 0 to 1: of its step, its batch or its KV cache, whichever is most."""
        share = max(self.step_share_of(prompt_tokens, output_tokens, tpot_seconds), 1 / self.max_batch)
        memory = (prompt_tokens + output_tokens / 2) / self.kv_capacity if self.kv_capacity else 0.0
        return min(max(share, memory), 1.0)


UNKNOWN: Final = EngineSpeed(NOMINAL_SPEED)
