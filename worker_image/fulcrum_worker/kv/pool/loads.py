"""The pool in the scheduler's half: which requests load from it, and which loads are given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum_worker.kv.pool.pace import PoolPace, Wanted
from fulcrum_worker.kv.pool.tier import PoolTier


class PoolLoads:
    """For an engine with one pool below its host memory."""

    def __init__(
        self,
        tier: PoolTier,
        *,
        block_tokens: int,
        bytes_per_token: float,
        speed: Callable[[], SpeedCoefficients | None],
    ) -> None:
        self._tier = tier
        self._block = block_tokens
        self._pace = PoolPace(bytes_per_token=bytes_per_token, speed=speed, clock=time.monotonic)
        self._asking: tuple[str, int, int, TransferCost] | None = None
        tier.worth_loading = self._is_worth
        tier.loaded = lambda blocks, seconds: self._pace.learn(tokens=blocks * block_tokens, seconds=seconds)

    @classmethod
    def of(cls, manager: Any, **known: Any) -> PoolLoads | None:
        """Return the loads of an engine's pool; None where it has none."""
        tiers = [each for each in manager.secondary_tiers if isinstance(each, PoolTier)]
        return cls(tiers[0], **known) if tiers else None

    def asks(self, request: Any, present: int, after: TransferCost) -> None:
        """Take note of the request that vLLM looks up next; `after` is the way on from host memory."""
        self._asking = request.request_id, present, request.num_tokens, after

    def _is_worth(self, request_id: str, blocks: int) -> bool:
        if self._asking is None or self._asking[0] != request_id:
            return True
        _, present, prompt, after = self._asking
        wanted = Wanted(present=present, matched=present + blocks * self._block, prompt=prompt)
        return self._pace.is_worth(wanted, after=after)

    def give_up_late(self, request_id: str) -> None:
        """Cut the request's load where computing the rest is quicker: what came until then is used."""
        load = self._tier.loading(request_id)
        if load is None or load.finished or self._asking is None:
            return
        _, present, prompt, _ = self._asking
        wanted = Wanted(present=present, matched=present + len(load.keys) * self._block, prompt=prompt)
        share = len(load.moved) / len(load.keys)
        if self._pace.is_late(wanted, moved_share=share, seconds=time.monotonic() - load.began):
            load.cut_now()

    def await_change(self, seconds: float) -> None:
        """Wait for the pool, so that an engine that has nothing else to do does not spin."""
        self._tier.await_change(seconds)
