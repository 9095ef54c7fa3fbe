"""The seconds of engine steps, tabulated per batch size."""

from __future__ import annotations

from fulcrum.capacity.speed import Speed


class StepTimes:
    """Seconds of engine steps: `base[batch] + slope[batch] * context` for decoding, fused with prefill chunks.

    For a fixed batch a speed must be linear in the context, as all of `capacity` are: that is what makes a run of
    decode steps a closed form.
    """

    __slots__ = ("_prefill_seconds", "_shared", "base", "slope")

    def __init__(self, speed: Speed) -> None:
        far = float(max(speed.kv_capacity_tokens, 1))
        sizes = range(speed.max_batch + 1)
        self.base = [speed.decode_step_seconds(batch, 0.0) for batch in sizes]
        self.slope = [(speed.decode_step_seconds(batch, far) - self.base[batch]) / far for batch in sizes]
        self._prefill_seconds = speed.prefill_seconds
        # A fused step reads the weights once: the smaller of the two constants is not paid twice.
        self._shared = max(0.0, min(speed.prefill_seconds(0.0, 0.0), self.base[0]))

    def step_seconds(self, batch: int, context_tokens: int, tokens: int, squared_tokens: int) -> float:
        """Seconds of one step of `batch` decodes together with prefill chunks of `tokens` in all.

        `squared_tokens` is the sum of `(before + chunk)^2 - before^2`, so that the chunks of a prompt sum up to l^2.
        """
        decode_seconds = self.base[batch] + self.slope[batch] * context_tokens if batch else 0.0
        if not tokens:
            return decode_seconds
        prefill_seconds = self._prefill_seconds(tokens, squared_tokens)
        return prefill_seconds + decode_seconds - self._shared if batch else prefill_seconds
