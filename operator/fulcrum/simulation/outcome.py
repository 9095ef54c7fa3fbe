"""What became of each request, in columns that are written while the simulation runs."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.reasons import Reason

_EVERY: Final = slice(None)


class Outcome(IntEnum):
    """How a request ended."""

    PENDING = 0
    """It had not ended when the simulation did."""
    SERVED = 1
    REJECTED = 2
    FAILED = 3


class Ledger:
    """Preallocated columns: written through `array` (quick one by one), read through numpy views of the same memory."""

    __slots__ = (
        "_computed", "_end", "_expected", "_expected_at_end", "_order", "_outcome", "_ttft", "computed_tokens",
        "end_seconds", "ended", "expected_at_end", "expected_tokens", "order", "outcome", "rejections", "ttft_seconds",
    )  # fmt: skip

    def __init__(self, requests: int) -> None:
        unknown = array("d", [float("nan")]) * requests
        self._ttft, self._end = array("d", unknown), unknown
        self._expected, self._expected_at_end = array("d", bytes(8 * requests)), array("d", bytes(8 * requests))
        self._computed, self._order = array("q", bytes(8 * requests)), array("q", bytes(8 * requests))
        self._outcome = array("b", bytes(requests))
        self.ttft_seconds: NDArray[np.float64] = np.frombuffer(self._ttft, dtype=np.float64)
        self.end_seconds: NDArray[np.float64] = np.frombuffer(self._end, dtype=np.float64)
        self.expected_tokens: NDArray[np.float64] = np.frombuffer(self._expected, dtype=np.float64)
        """Output lengths that a gateway expected at arrival; 0 without a gateway."""
        self.expected_at_end: NDArray[np.float64] = np.frombuffer(self._expected_at_end, dtype=np.float64)
        """The same at the end, when more was known."""
        self.computed_tokens: NDArray[np.int64] = np.frombuffer(self._computed, dtype=np.int64)
        self.outcome: NDArray[np.int8] = np.frombuffer(self._outcome, dtype=np.int8)
        self.order: NDArray[np.int64] = np.frombuffer(self._order, dtype=np.int64)
        """Requests in the order of their end; the first `ended` count."""
        self.ended = 0
        self.rejections: dict[Reason, int] = {}

    def expect(self, index: int, output_tokens: float) -> None:
        """Write down what is expected of a request that came."""
        self._expected[index] = output_tokens

    def expect_at_end(self, index: int, output_tokens: float) -> None:
        """Write down what is expected of a request that ends."""
        self._expected_at_end[index] = output_tokens

    def close(self, index: int, outcome: Outcome, end: float, ttft: float, computed: int) -> None:
        """Write down the end of a request; `ttft` is NaN without a first token."""
        self._outcome[index] = outcome
        self._end[index] = end
        self._ttft[index] = ttft
        self._computed[index] = computed
        self._order[self.ended] = index
        self.ended += 1

    def tpot_seconds(
        self,
        arrival_seconds: NDArray[np.float64],
        output_tokens: NDArray[np.int32],
        requests: NDArray[np.int64] | slice = _EVERY,
    ) -> NDArray[np.float64]:
        """Mean time per token after the first of `requests`; NaN where there is none, and for those not served."""
        gaps = output_tokens[requests].astype(np.float64) - 1
        gaps[(gaps == 0) | (self.outcome[requests] != Outcome.SERVED)] = np.nan
        first = arrival_seconds[requests] + self.ttft_seconds[requests]
        mean: NDArray[np.float64] = (self.end_seconds[requests] - first) / gaps
        return mean
