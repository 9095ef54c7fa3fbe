"""What admission goes by and decides, and its counters."""

from __future__ import annotations

import msgspec

from fulcrum.api.reasons import Reason
from fulcrum.routing import Flight, Route


class Over(msgspec.Struct, frozen=True):
    """A limit that the path is over."""

    reason: Reason
    after_seconds: float
    """Time until it no longer would be, if nothing else came."""
    prefill_is_kept: bool = False
    """Nothing else is in its way than prefill that is kept for other classes."""


class ThresholdLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the policy Threshold, for each worker. They need no prediction."""

    queued_prompt_tokens: float = 32_768.0
    kv_usage: float = 0.9
    """Share of the KV cache, 0 to 1, that prompts and expected outputs may take."""
    batch: float = 1.0
    """Share of the engine's `max_num_seqs`."""


class Admit(msgspec.Struct, frozen=True):
    """Serve it on this path."""

    route: Route


class Preempt(msgspec.Struct, frozen=True):
    """Serve it on this path, and first abort `victims`: queued prefills of lower classes, no token of them was sent.

    Victims are answered like rejected requests, with `Reason.PREEMPTED` and `retry_after_seconds`.
    """

    route: Route
    victims: tuple[Flight, ...]
    retry_after_seconds: float


class Reject(msgspec.Struct, frozen=True):
    """Turn it away."""

    reason: Reason
    retry_after_seconds: float | None = None
    """When the predicted queue would let it in; None: never, or nobody knows (no worker is there)."""
    predicted: Route | None = None
    """The path that it would have had."""


class Tally(msgspec.Struct):
    """Requests that were turned away."""

    requests: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    """Expected."""
