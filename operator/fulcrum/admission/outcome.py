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
    promised_seconds: float = 0.0
    """TTFT or TPOT, by `reason`."""


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
    output_cap: int | None = None
    """Most output tokens that it may have, because its class is degraded; None: as many as it asks for."""


class Preempt(msgspec.Struct, frozen=True):
    """Serve it on this path, and first abort `victims`: queued prefills of lower classes, no token of which was sent,
    and batch requests at any stage.

    Victims are answered like rejected requests, with `Reason.PREEMPTED` and `retry_after_seconds`.
    """

    route: Route
    victims: tuple[Flight, ...]
    retry_after_seconds: float
    output_cap: int | None = None
    """As in `Admit`."""


class Reject(msgspec.Struct, frozen=True):
    """Turn it away."""

    reason: Reason
    retry_after_seconds: float | None = None
    """When the predicted queue would let it in; None: never, or that is unknown (no worker is there)."""
    predicted: Route | None = None
    """The path that it would have had."""
    promised_seconds: float = 0.0
    """What `reason` is about: TTFT, or TPOT; 0 where it is neither."""
    over: Reason | None = None
    """The limit that it is over the longest; None: none is predicted."""

    @property
    def numbers(self) -> str:
        """What was predicted against what is promised, as a part of a sentence; empty without a prediction."""
        found = self.predicted
        if found is None or not found.known or not self.promised_seconds:
            return ""
        if self.reason is Reason.TPOT_UNREACHABLE:
            predicted_ms, promised_ms = 1e3 * found.hand_over.step_seconds, 1e3 * self.promised_seconds
            return f"predicted TPOT {predicted_ms:.0f} ms against {promised_ms:.0f} ms promised"
        queue = found.wait_seconds + found.hand_over.slot_seconds
        rest = found.ttft_seconds - queue - found.own_seconds
        return (
            f"predicted TTFT {found.ttft_seconds:.2g} s (queue {queue:.2g}, prefill {found.own_seconds:.2g}, "
            f"hand-over {max(rest, 0.0):.2g}) against {self.promised_seconds:.2g} s promised"
        )


class Tally(msgspec.Struct):
    """Requests that were turned away."""

    requests: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    """Expected."""
