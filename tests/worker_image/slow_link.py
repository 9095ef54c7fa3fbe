"""A link to host memory whose speed a test sets, and restores whose split it sets; loaded into a real engine.

The engine's own spec has no pace: only a `--kv-transfer-config` that names these classes slows it down.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.worker_image.link_file import Link

from fulcrum.kv import How, Restore
from fulcrum_worker.kv import connector, tier_scheduler
from fulcrum_worker.kv.front import Front
from fulcrum_worker.kv.pool import tier
from fulcrum_worker.kv.spec import HostTierSpec


class SlowLinkSpec(HostTierSpec):
    def pace(self) -> Callable[[int], float]:
        path = self.extra_config["link_file"]
        seen = [Link(), 0]

        def seconds(size: int) -> float:
            link = Link.read(path)
            if link != seen[0]:
                seen[:] = [link, 0]
            seen[1] += 1
            rate = link.bytes_per_second
            if link.then_bytes_per_second is not None and seen[1] > link.blocks_before:
                rate = link.then_bytes_per_second
            return size / rate if rate is not None else 0.0

        return seconds


class PoolTier(tier.PoolTier):
    """Reads no quicker than the link's file says."""

    def _read(self, key: bytes, buffer: memoryview) -> None:
        path = self._offloading_spec.extra_config["link_file"]
        link = Link.read(path)
        with self._lock:
            if getattr(self, "_seen", None) != link:
                self._seen, self._blocks = link, 0
            self._blocks += 1
            slow = link.then_pool_seconds_per_block is not None and self._blocks > link.blocks_before
        seconds = link.then_pool_seconds_per_block if slow else link.pool_seconds_per_block
        time.sleep(seconds or 0.0)
        super()._read(key, buffer)


class _TestedScheduler(tier_scheduler.TierScheduler):
    def __init__(self, spec: Any, *more: Any) -> None:
        super().__init__(spec, *more)
        self._path = spec.extra_config["link_file"]

    def decide(self, request: Any, *, present: int, matched: int) -> Restore | None:
        way = super().decide(request, present=present, matched=matched)
        split = Link.read(self._path).split
        if split == "load":
            way = None
        elif split == "none":
            way = Restore(how=How.NONE, recompute_tokens=matched - present, load_tokens=0, predicted_seconds=0.0)
        elif isinstance(split, int):
            recompute = split - present
            way = Restore(how=How.FRONT, recompute_tokens=recompute, load_tokens=matched - split, predicted_seconds=0.0)
        log = {
            "at": time.time(),
            "present": present,
            "matched": matched,
            "prompt": request.num_tokens,
            "speed": msgspec.to_builtins(self.speed.coefficients()),
            "seconds_per_token": self._link.predict().seconds_per_token,
            "way": msgspec.to_builtins(way),
        }
        with Path(self._path).with_suffix(".log").open("a") as out:
            out.write(json.dumps(log) + "\n")
        return way

    def split_again(self, front: Front) -> None:
        if Link.read(self._path).split == "auto":
            super().split_again(front)


class TierConnector(connector.TierConnector):
    """Has the name of the engine's own: vLLM's API server knows connectors by their names."""

    scheduler_half = _TestedScheduler
