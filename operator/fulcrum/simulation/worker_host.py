"""What a worker tells the simulation, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fulcrum.simulation.simulated_request import RequestWorker, SimulatedRequest


class WorkerHost(Protocol):
    """What is told what a worker has done."""

    def finished(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """Handle a request whose last token is out."""

    def prefilled(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """Handle a request whose KV is ready and held for a decode worker."""

    def first_token(self, request: SimulatedRequest, at: float) -> None:
        """Handle the first token of a whole request, or of one that was pulled; `at` is now, or a step ahead."""

    def pull(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """Start moving the request's KV to `worker`, which has reserved the blocks; then call `loaded`."""

    def restore(self, request: SimulatedRequest, worker: RequestWorker, ends: float) -> None:
        """Call `restored` at `ends`."""


@dataclass(slots=True)
class WorkDone:
    """What the engine has done so far (`api.worker.WorkCounters`)."""

    prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    busy_seconds: float = 0.0
    preemptions: int = 0
