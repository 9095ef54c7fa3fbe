"""What it costs to move KV between two pools: before any transfer was seen, and learnt from those that were.

Costs are seconds per token: in a cluster all KV is of one model and element type, so a token is a number of bytes.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from math import isfinite
from statistics import median
from typing import Final

from fulcrum.api.attention import usual_backend, usual_block_tokens
from fulcrum.api.pool_attention import attention_backend
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import KvCacheConfig, WorkerConfig
from fulcrum.capacity.accelerators import UnknownAcceleratorError, accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import BLOCK_TOKENS, Link, TransferCost, transfer_cost
from fulcrum.capacity.kv_dtype import kv_precision
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.precision import Precision

_ROWS: Final = 16
"""Latest transfers that a cost is learnt from. A link that changed is known after half of them."""
_LEAST_ROWS: Final = 3
"""Fewer transfers change nothing: the first one of a pair of engines also waits for their handshake."""
_ROW_SECONDS: Final = 1800.0
"""Age at which a transfer is forgotten. A pair that is avoided is tried again after this time, which costs a few late
requests where it is still slow, and the balance changes roles for it at most as often."""


def pool_transfer(spec: InferenceClusterSpec, pool: Pool, model: ModelFacts | None = None) -> TransferCost | None:
    """Return what moving KV costs a worker of `pool` before any transfer was seen; None: its model is not known.

    `model` is what is known of the model; None: what its name says.

    Over the link that the accelerator has with `rdma`, else over TCP, in the KV blocks that its engine has.
    """
    known = model or facts_of_name(spec.model.name)
    kv = kv_precision(spec, known.kind)
    config = WorkerConfig(
        cluster="",
        pool=pool.name,
        model=spec.model.name,
        served_name="",
        accelerator=pool.accelerator,
        tensor_parallel=pool.parallelism.tensor,
        pipeline_parallel=pool.parallelism.pipeline,
        data_parallel=pool.parallelism.data,
        expert_parallel=pool.parallelism.experts,
        kv_cache=KvCacheConfig(block_size=spec.engine.kv_cache.block_size),
        attention_backend=attention_backend(spec, pool, kind=known.attention, fp8=kv is Precision.FP8),
        rdma=pool.rdma is not None,
    )
    return worker_transfer(config, known, kv=kv)


def worker_transfer(config: WorkerConfig, model: ModelFacts, *, kv: Precision) -> TransferCost | None:
    """Return the same for a worker of this configuration, whose engine has KV of type `kv`."""
    if model.dimensions is None:
        return None
    try:
        shape = EngineShape(
            model=model.dimensions,
            accelerator=accelerator(config.accelerator),
            tensor=config.tensor_parallel,
            pipeline=config.pipeline_parallel,
            data=config.data_parallel,
            experts=config.expert_parallel,
            kv=kv,
        )
    except (UnknownAcceleratorError, EngineShapeError):
        return None
    link = Link.NETWORK if config.rdma else Link.TCP
    return transfer_cost(shape, link, block_tokens=_block_tokens(config, model, kv))


def _block_tokens(config: WorkerConfig, model: ModelFacts, kv: Precision) -> int:
    """Return the tokens in a KV block: as told, else what vLLM chooses for the attention backend."""
    if config.kv_cache.block_size is not None:
        return config.kv_cache.block_size
    fp8 = kv is Precision.FP8
    backend = config.attention_backend or usual_backend(config.accelerator, model.attention, fp8=fp8)
    return BLOCK_TOKENS if backend is None else usual_block_tokens(backend)


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
        # Of a full window the next one counts after 0.25 s: an estimate takes 0.1 ms, and 16 transfers of one moment
        # would be disturbed by the same cause.
        if len(rows) == _ROWS and now_seconds - self.learnt_at < 0.25:
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
