"""What became of one request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended, as its client sees it. Exactly one applies.

    ok: HTTP 200, a well-formed stream with the tokens that were asked for, a finish reason and `[DONE]`.
    rejected: HTTP 429 or 503 with `Retry-After`: turned away before any work, with a hint when to come back.
    failed: a clean error. The connection could not be made, or the answer is any other HTTP error status, or the stream
        carries an error object. The client knows that it has no answer.
    lost: taken on, then neither completed nor refused. The connection ended or timed out after the request was sent and
        before an answer, or the stream ended without `[DONE]` and without an error object, or it is malformed, has no
        finish reason, or another number of tokens than was asked for (where the endpoint honours `ignore_eos`).
    """

    OK = "ok"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that has ended. Times are seconds on one monotonic clock (`time.perf_counter`)."""

    outcome: Outcome
    detail: str
    """Why it is not ok; empty when it is."""
    due_seconds: float
    """When the trace wanted it sent; latency counts from here, so that a slow client cannot hide a slow server."""
    sent_seconds: float
    first_token_seconds: float | None
    last_token_seconds: float | None
    end_seconds: float
    output_tokens: int
    """As the endpoint's usage says, or else the number of chunks."""
    retries: int = 0
    """How often it was turned away before this outcome."""
    retry_after_seconds: float | None = None
    """The last hint when to come back."""
    text: str = ""
    path: str = ""
    """The workers that served it: `PREFILL,DECODE`, or one that did both; empty where the endpoint does not say it."""

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token, retries included; None without a token."""
        return None if self.first_token_seconds is None else self.first_token_seconds - self.due_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if self.first_token_seconds is None or self.last_token_seconds is None or self.output_tokens < 2:
            return None
        return (self.last_token_seconds - self.first_token_seconds) / (self.output_tokens - 1)
