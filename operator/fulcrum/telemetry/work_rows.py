"""From load reports that come each tick to rows that calibrate a pool's speed, and to its prefix-cache hit rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Final

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, WorkCounters
from fulcrum.capacity.rows import DecodeRow, PrefillRow, rows_between

WINDOW_SECONDS: Final = 10.0
"""Length of one row: much longer than a prefill, or what ends just outside of it would weigh too much."""
_HIT_SECONDS: Final = 300.0
_STEPS_TO_FETCH: Final = 2.0
"""A prompt whose KV came from a peer has its first token after a step or two; one that was computed takes longer."""


@dataclass(frozen=True, slots=True)
class _Baseline:
    incarnation: Hashable
    at_seconds: float
    report: LoadReport
    work: WorkCounters


class WorkRows:
    """Remembers one report of each worker until its row is due."""

    def __init__(self, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._baselines: dict[str, _Baseline] = {}
        self._prompts: deque[tuple[float, int, int]] = deque()
        """Time, prompt tokens and cached ones of the rows of the last minutes."""

    def put(
        self, worker: str, incarnation: Hashable, report: LoadReport | None, *, now: float, isl_cv2: float | None = None
    ) -> tuple[PrefillRow | DecodeRow, ...]:
        """Take in a worker's report of `now` (seconds of any clock); return the rows that it completes, mostly none.

        `incarnation` differs for each life of the worker's container (Pod uid and restarts). A row never spans a change
        of role, an unready worker or the measurement at start. `isl_cv2` is the spread of the prompt lengths
        (`Traffic.isl_cv2`).
        """
        if report is None or report.work is None:
            return ()  # the counters go on: the next report will say
        before = self._baselines.pop(worker, None)
        if not report.ready:
            return ()
        here = _Baseline(incarnation, now, report, report.work)
        if before is None or not _same_life(before, here):
            self._baselines[worker] = here
            return ()
        seconds = now - before.at_seconds
        if seconds < self._window_seconds:
            self._baselines[worker] = before
            return ()
        self._baselines[worker] = here
        if report.role is not Role.DECODE:
            self._note_prompts(before.work, here.work, now)
        prefill, decode = rows_between(
            before.report, report, seconds=seconds, isl_cv2=1.0 if isl_cv2 is None else isl_cv2
        )
        if prefill is not None and not _computed_here(before.work, here.work, report.role):
            prefill = None
        return tuple(row for row in (prefill, decode) if row is not None)

    def prefix_hit(self, now: float) -> float | None:
        """Return the share of prompt tokens that prefix caches answered lately, 0 to 1; None when none came."""
        recent = [(tokens, cached) for at_seconds, tokens, cached in self._prompts if now - at_seconds <= _HIT_SECONDS]
        tokens = sum(each for each, _ in recent)
        return min(1.0, sum(cached for _, cached in recent) / tokens) if tokens > 0 else None

    def keep(self, workers: Collection[str]) -> None:
        """Forget all workers but these."""
        self._baselines = {name: baseline for name, baseline in self._baselines.items() if name in workers}

    def _note_prompts(self, before: WorkCounters, after: WorkCounters, now: float) -> None:
        tokens, cached = after.prompt_tokens - before.prompt_tokens, after.cached_tokens - before.cached_tokens
        if tokens > 0 and cached >= 0:
            self._prompts.append((now, tokens, cached))
        while self._prompts and now - self._prompts[0][0] > _HIT_SECONDS:
            self._prompts.popleft()


def _same_life(before: _Baseline, after: _Baseline) -> bool:
    """Whether the counters go on: one engine, one role, and none of them went back."""
    one, two = before.report, after.report
    return (
        before.incarnation == after.incarnation
        and (one.role, one.role_epoch) == (two.role, two.role_epoch)
        and before.work.prompts <= after.work.prompts
        and before.work.decode_tokens <= after.work.decode_tokens
        and before.at_seconds <= after.at_seconds
    )


def _computed_here(before: WorkCounters, after: WorkCounters, role: Role) -> bool:
    """Whether the engine computed the prompts that it counts.

    vLLM 0.32.0 counts a prompt whose KV came from a prefill worker as computed, as far as that one computed it.
    """
    if role is Role.DECODE:
        return False
    steps = after.decode_tokens - before.decode_tokens
    prompts = after.prompts - before.prompts
    if steps <= 0 or prompts <= 0:
        return prompts > 0
    seconds_per_step = (after.decode_seconds - before.decode_seconds) / steps
    seconds_per_prompt = (after.prefill_seconds - before.prefill_seconds) / prompts
    return seconds_per_prompt > _STEPS_TO_FETCH * seconds_per_step
