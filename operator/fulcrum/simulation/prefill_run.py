"""The prompts that one worker prefills: which of them the next step computes, and how much of each."""

from __future__ import annotations

from fulcrum.simulation.simulated_request import SimulatedRequest


class PrefillRun:
    """Chunks of begun prompts, the first come first; a prompt beyond the step's budget goes on in the next step."""

    __slots__ = ("chunks", "squared_tokens", "tokens")

    def __init__(self) -> None:
        self.chunks: list[tuple[SimulatedRequest, int]] = []
        """Begun prompts, and how many tokens of each the step takes; 0 for those that have to wait."""
        self.tokens = 0
        """Of the step in all."""
        self.squared_tokens = 0
        """Sum of `(before + chunk)^2 - before^2`, so that the chunks of a prompt sum up to the square of its length."""

    def go_on(self, budget: int) -> int:
        """Give the begun prompts their chunks of the next step; returns what is left of the budget."""
        begun, self.chunks = self.chunks, []
        self.tokens = self.squared_tokens = 0
        for request, _ in begun:
            budget -= self.begin(request, budget)
        return budget

    def begin(self, request: SimulatedRequest, budget: int) -> int:
        """Give a prompt its chunk, which may be nothing; returns the tokens of it."""
        chunk = max(0, min(budget, (request.context if request.limit is None else request.limit) - request.done))
        self.tokens += chunk
        self.squared_tokens += chunk * (chunk + 2 * request.done)
        self.chunks.append((request, chunk))
        return chunk

    def drop(self, request: SimulatedRequest) -> bool:
        """Compute no more of a prompt; False when it has not begun or is done. The step under way takes as long."""
        left = [entry for entry in self.chunks if entry[0] is not request]
        dropped = len(left) < len(self.chunks)
        self.chunks = left
        return dropped

    def advance(self) -> tuple[int, list[SimulatedRequest]]:
        """The step is over: returns the tokens that were computed, and the prompts that are whole now."""
        chunks, self.chunks = self.chunks, []
        computed = 0
        whole: list[SimulatedRequest] = []
        for request, tokens in chunks:
            request.done += tokens
            request.computed += tokens
            computed += tokens
            if request.done < request.context:
                self.chunks.append((request, 0))
            else:
                whole.append(request)
        return computed, whole
