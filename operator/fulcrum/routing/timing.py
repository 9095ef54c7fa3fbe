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
from fulcrum.routing.request_load import RequestLoad
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
        if flight.load.started_at > began:
            # It came later, and yet it was in this step.
            self.broken_off(worker, now_seconds)
            return
        if flight.load.started_at <= before:
            return  # the same step as another one that was answered a moment ago
        step = _step(worker)
        worker.step_before, worker.step_began = began, now_seconds
        if step is not None:
            self._keep(worker, step, now_seconds - began)

    def overdue(self, flight: Flight, now_seconds: float) -> None:
        """A prompt was given up on: its step takes this long at least. Call it before the queue forgets it.

        Were nothing learnt of it, a worker that is much slower than thought would be given up on again and again.
        """
        worker = flight.prefill
        in_step = worker.step_before < flight.load.started_at <= worker.step_began
        step = _step(worker) if in_step else None
        seconds = now_seconds - worker.step_began
        if step is not None and seconds > sum(leg.work_seconds for leg in step):
            self._keep(worker, step, seconds)

    def _keep(self, worker: WorkerView, step: list[RequestLoad], seconds: float) -> None:
        tokens = sum(leg.new_tokens for leg in step)
        steps = ceil(tokens / worker.engine.chunk_tokens)
        if len(step) > worker.engine.max_batch or (steps > 1 and len(step) > 1):
            return  # more than one step takes: the first answer came before the last prompt was read
        squares = sum(leg.new_tokens * (leg.prompt_tokens + leg.cached_tokens) for leg in step)
        row = PrefillRow(prompts=steps, tokens=tokens, squared_tokens=squares, seconds=seconds)
        rows = self._rows.setdefault(worker.pool, [])
        rows.append(row)
        if len(rows) > _MOST_ROWS:
            del rows[0]


def _step(worker: WorkerView) -> list[RequestLoad] | None:
    """Prompts of the step under way; None where more was in it than prompts that are known.

    Ranks of data parallel end each step together, so its time says little of the prompts of one.
    """
    if worker.foreign or worker.answers.running or worker.lockstep is not None:
        return None
    step = []
    for leg in worker.prompts.legs:
        if leg.started_at > worker.step_began:
            break
        if leg.started_at > worker.step_before:
            if leg.loaded_tokens:
                return None  # it also waited for its load
            step.append(leg)
    return step
