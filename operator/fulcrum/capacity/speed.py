"""How fast one worker is: the contract between `capacity` and all that use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.decode_curve import decode_batch, decode_line, decode_step_seconds
from fulcrum.capacity.kv import TransferCost

MAX_BATCH: Final = 256
"""vLLM's default of `max_num_seqs`: what an engine has that reports none of its own."""
TYPICAL_TOKENS: Final = 1024.0
TYPICAL_BATCH: Final = 32.0
"""A prompt, or a context, and a decode batch that speeds are compared by."""


class SpeedSource(StrEnum):
    """Where coefficients come from, in rising order of trust."""

    ROOFLINE = "roofline"
    PROFILE = "profile"
    MEASURED = "measured"


class Speed(Protocol):
    """What planners and the simulator ask of a worker."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache of one worker holds."""

    @property
    def max_batch(self) -> int:
        """Most requests in one engine step."""

    @property
    def max_batched_tokens(self) -> int:
        """Token budget of one engine step."""

    def prefill_seconds(self, tokens: float, squared_tokens: float) -> float:
        """Seconds of one prefill step over prompts with summed lengths `tokens` and summed squares `squared_tokens`."""

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Seconds of one decode step of `batch` requests whose contexts sum up to `context_tokens`."""

    def transfer_seconds(self, tokens: float) -> float:
        """Seconds that the KV of a prompt of `tokens` takes from a prefill to a decode worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpeed:
    """Speed and room of one worker (one engine with all its GPUs). Workers of a pool are alike.

    A worker of several data-parallel ranks is as many engines: all figures but `ranks` are of one of them, whose peers
    have as much to do.

    `prefill_seconds = a + b * sum(l) + c * sum(l^2)` (the form of DistServe, arXiv 2401.09670, section 4), decode as in
    `decode_curve`.
    """

    coefficients: SpeedCoefficients
    kv_capacity_tokens: int
    """Tokens that the KV cache of one worker holds."""
    ranks: int = 1
    """Ranks of data parallel in one worker."""
    max_batch: int = MAX_BATCH
    """Most requests in one engine step (vLLM's `max_num_seqs`)."""
    max_batched_tokens: int = 8192
    """Token budget of one engine step (vLLM's `max_num_batched_tokens`): prompts beyond it are prefilled in chunks."""
    transfer_base_seconds: float = 0.0
    transfer_seconds_per_token: float = 0.0
    """KV transfer of one request from prefill to decode: base + per prompt token."""
    source: SpeedSource = SpeedSource.MEASURED

    def prefill_seconds(self, tokens: float, squared_tokens: float) -> float:
        """Seconds of one prefill step over prompts with summed lengths `tokens` and summed squares `squared_tokens`."""
        k = self.coefficients
        return k.prefill_a + k.prefill_b * tokens + k.prefill_c * squared_tokens

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Seconds of one decode step of `batch` requests whose contexts sum up to `context_tokens`."""
        return decode_step_seconds(self.coefficients, batch, context_tokens)

    @property
    def idle_step_seconds(self) -> float:
        """Seconds of a decode step without the part of any request."""
        return max(decode_line(self.coefficients, 0.0)[0], 0.0)

    def decode_batch(self, step_seconds: float, context_tokens: float) -> float:
        """Most requests of `context_tokens` each whose step takes at most so long, memory aside; may be below 1."""
        return decode_batch(self.coefficients, step_seconds, context_tokens, self.max_batch)

    def transfer_seconds(self, tokens: float) -> float:
        """Seconds that the KV of a prompt of `tokens` takes from a prefill to a decode worker."""
        return self.transfer.seconds(tokens)

    @property
    def transfer(self) -> TransferCost:
        """What moving KV to or from such a worker costs."""
        return TransferCost(base_seconds=self.transfer_base_seconds, seconds_per_token=self.transfer_seconds_per_token)

    def with_transfer(self, cost: TransferCost) -> WorkerSpeed:
        """Return the same speed with another cost of moving KV."""
        return replace(self, transfer_base_seconds=cost.base_seconds, transfer_seconds_per_token=cost.seconds_per_token)
