"""What it costs to move KV between two pools: before any transfer was seen, and learnt from those that were.

Costs are seconds per token: in a cluster all KV is of one model and element type, so a token is a number of bytes.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from math import isfinite
from statistics import median
from typing import Final

from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.accelerators import UnknownAcceleratorError, accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import BLOCK_TOKENS, Link, TransferCost, transfer_cost
from fulcrum.capacity.kv_dtype import kv_precision
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name

_ROWS: Final = 16
"""Latest transfers that a cost is learnt from. A link that changed is known after half of them."""
_LEAST_ROWS: Final = 3
"""Fewer transfers change nothing: the first one of a pair of engines also waits for their handshake."""
_ROW_SECONDS: Final = 1800.0
"""Age at which a transfer is forgotten. A pair that is avoided is tried again after this time, which costs a few late
requests where it is still slow, and the balance changes roles for it at most as often."""
_LEAST_SECONDS: Final = 0.25
"""Least time between two transfers of a full window: an estimate takes 0.1 ms, and 16 transfers of one moment would be
disturbed by the same cause."""


def pool_transfer(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts | None = None) -> TransferCost | None:
    """Return what moving KV costs a worker of `pool` before any transfer was seen; None: its model is not known.

    `model` is what is known of the model; None: what its name says.

    Over the link that the accelerator has with `rdma`, else over TCP, in the KV blocks of the spec.
    """
    known = model or facts_of_name(spec.model.name)
    if known.dimensions is None:
        return None
    try:
        shape = EngineShape(
            model=known.dimensions,
            accelerator=accelerator(pool.accelerator),
            tensor=pool.parallelism.tensor,
            pipeline=pool.parallelism.pipeline,
            data=pool.parallelism.data,
            experts=pool.parallelism.experts,
            kv=kv_precision(spec, known.kind),
        )
    except (UnknownAcceleratorError, EngineShapeError):
        return None
    link = Link.TCP if pool.rdma is None else Link.NETWORK
    return transfer_cost(shape, link, block_tokens=spec.engine.kv_cache.block_size or BLOCK_TOKENS)


class LearntTransfer:
    """Cost of transfers between two pools, from a prior and from the latest transfers.

    Medians hold against transfers that were disturbed, up to a quarter of them. Where prompts are of unlike lengths,
    base and rate are learnt apart (Theil-Sen); where they are alike, the prior says how the cost is divided.
    """

    def __init__(self, prior: TransferCost) -> None:
        """Begin at `prior`, whose rate of 0 is an unknown one."""
        self.cost = prior
        self.learnt_at = 0.0
        """Time of the latest transfer; 0 before the first."""
        self._prior = prior
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=_ROWS)

    @property
    def rows(self) -> int:
        """Transfers that the cost rests on."""
        return len(self._rows) if len(self._rows) >= _LEAST_ROWS else 0

    def learn(self, *, tokens: float, seconds: float, now_seconds: float) -> None:
        """Take note of a transfer. What cannot be (no tokens, a time below 0, NaN) is left out."""
        rows = self._rows
        if len(rows) == _ROWS and now_seconds - self.learnt_at < _LEAST_SECONDS:
            return
        if not (isfinite(tokens) and isfinite(seconds) and tokens > 0 and seconds >= 0):
            return
        self.learnt_at = now_seconds
        rows.append((now_seconds, tokens, seconds))
        while now_seconds - rows[0][0] > _ROW_SECONDS:
            rows.popleft()
        if len(rows) >= _LEAST_ROWS:
            self.cost = self._apart() or self._scaled()

    def stale(self, now_seconds: float) -> bool:
        """Report whether all that was learnt is forgotten by now."""
        return now_seconds - self.learnt_at > _ROW_SECONDS

    def _apart(self) -> TransferCost | None:
        """Return base and rate by the median slope between transfers; None where too few are of unlike lengths."""
        apart = 0.5 * median(tokens for _, tokens, _ in self._rows)
        slopes = [
            (seconds - other_seconds) / (tokens - other_tokens)
            for (_, tokens, seconds), (_, other_tokens, other_seconds) in combinations(self._rows, 2)
            if abs(tokens - other_tokens) >= apart
        ]
        if len(slopes) < _ROWS:
            return None
        rate = max(0.0, median(slopes))
        base = max(0.0, median(seconds - rate * tokens for _, tokens, seconds in self._rows))
        return TransferCost(base_seconds=base, seconds_per_token=rate)

    def _scaled(self) -> TransferCost:
        """Return the prior times the median factor by which it was wrong; an unknown rate is what its base leaves."""
        prior = self._prior
        if prior.seconds_per_token > 0:
            factor = median(seconds / prior.seconds(tokens) for _, tokens, seconds in self._rows)
            return TransferCost(
                base_seconds=factor * prior.base_seconds, seconds_per_token=factor * prior.seconds_per_token
            )
        rate = median(max(seconds - prior.base_seconds, 0.0) / tokens for _, tokens, seconds in self._rows)
        return TransferCost(base_seconds=prior.base_seconds, seconds_per_token=rate)
