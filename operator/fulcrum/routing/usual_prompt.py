"""How long the prompts are that a worker gets, by its engine's own counters. Pure."""

from __future__ import annotations

from fulcrum.api.worker import WorkCounters
from fulcrum.routing.tuning import TUNING


class UsualPrompt:
    """Mean of the prompts that a worker's engine prefilled lately, whichever gateway sent them; sums that fade."""

    __slots__ = ("_counted", "_prompts", "_tokens", "_uncached")

    def __init__(self) -> None:
        self._counted: WorkCounters | None = None
        self._prompts = self._tokens = self._uncached = 0.0

    def learn(self, work: WorkCounters) -> None:
        """Take the engine's counters, which begin again with it."""
        before, self._counted = self._counted, work
        prompts = work.prompts - before.prompts if before is not None else 0
        if before is None or prompts <= 0:
            return
        tokens, cached = work.prompt_tokens - before.prompt_tokens, work.cached_tokens - before.cached_tokens
        left = (1 - 1 / TUNING.recent_requests) ** prompts
        self._prompts = left * self._prompts + prompts
        self._tokens = left * self._tokens + tokens
        self._uncached = left * self._uncached + max(tokens - cached, 0)

    def tokens(self, else_tokens: float) -> tuple[float, float]:
        """Return the mean length, at least 1, and what of it is computed; `else_tokens` of both while none came."""
        if not self._tokens:
            return max(else_tokens, 1.0), max(else_tokens, 1.0)
        return self._tokens / self._prompts, max(self._uncached / self._prompts, 1.0)
