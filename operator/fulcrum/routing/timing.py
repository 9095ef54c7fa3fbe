"""What the answers of workers say about their speed: how long engine steps with prompts took. Pure.

An engine prefills all that waits in one step, and answers all of it at the end. So between the end of one step and the
first answer of the next lies one step, with the prompts that waited when it began. What a client feels is in it, too:
HTTP, tokenizer, a processor that others also use.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from fulcrum.capacity.rows import PrefillRow
from fulcrum.routing.flight import Flight
from fulcrum.routing.worker import WorkerView

_MOST_ROWS: Final = 8
"""Rows of a pool that are kept until they are asked for; the newest ones."""


class StepTimes:
    """Rows for `capacity.online`, by pool."""

    def __init__(self) -> None:
        self._rows: dict[str, list[PrefillRow]] = {}

    def take(self) -> dict[str, list[PrefillRow]]:
        """Rows since the last time, by pool, in order."""
        rows, self._rows = self._rows, {}
        return rows

    def starts(self, worker: WorkerView, now_seconds: float) -> None:
        """A prompt is sent to an idle worker: it begins a step."""
        worker.step_before, worker.step_began = -inf, now_seconds

    def broken_off(self, worker: WorkerView, now_seconds: float) -> None:
        """A prompt ended without its answer: it is not known what the step under way is made of now."""
        worker.step_before = worker.step_began = now_seconds

    def answered(self, flight: Flight, now_seconds: float) -> None:
        """A prompt is prefilled. Call it before the worker's queue forgets it."""
        worker = flight.prefill
        before, began = worker.step_before, worker.step_began
        if flight.started_at > began:
            # It came later, and yet it was in this step.
            self.broken_off(worker, now_seconds)
            return
        if flight.started_at <= before:
            return  # the same step as another one that was answered a moment ago
        worker.step_before, worker.step_began = began, now_seconds
        if worker.foreign or worker.running:
            return  # work that is not known in prompts was in it
        prompts, tokens, squares = 0, 0.0, 0.0
        for leg in worker.legs:
            if leg.started_at > began:
                break
            if leg.started_at > before:
                if leg.route.loaded_tokens:
                    return  # it also waited for its load
                prompts += 1
                tokens += leg.new_tokens
                squares += leg.new_tokens * (leg.prompt_tokens + leg.route.cached_tokens)
        steps = ceil(tokens / worker.chunk_tokens)
        if prompts > worker.max_batch or (steps > 1 and prompts > 1):
            return  # more than one step takes: the first answer came before the last prompt was read
        row = PrefillRow(prompts=steps, tokens=tokens, squared_tokens=squares, seconds=now_seconds - began)
        rows = self._rows.setdefault(worker.pool, [])
        rows.append(row)
        if len(rows) > _MOST_ROWS:
            del rows[0]
