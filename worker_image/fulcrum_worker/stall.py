"""Whether an engine with work stands still: `/health` of vLLM also answers for an engine that hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.engine_metrics import EngineMetrics

LEAST_SECONDS: Final = 60.0
"""Shortest silence that counts as a stall. A decode engine gives up a silent peer after 5 to 35 s (vLLM 0.32, measured)
and then goes on by itself; that is no stall."""
UNKNOWN_SPEED_SECONDS: Final = 300.0
"""Silence that counts as a stall where the engine could not be measured."""
LONGEST_SECONDS: Final = 1800.0
"""Upper bound, for engines that measured badly slow."""
STEP_FACTOR: Final = 20.0
"""Silence in units of the longest step: what was measured on an idle machine can be several times too fast later."""
POLL_SECONDS: Final = 2.0


def stall_seconds(speed: SpeedCoefficients | None, metrics: EngineMetrics) -> float:
    """Silence after which an engine with work is taken for stalled, by the longest step that it can have to do.

    That is a full token budget of prefill beside a full batch whose contexts fill the KV cache.
    """
    if speed is None or metrics.max_batched_tokens is None:
        return UNKNOWN_SPEED_SECONDS
    prompt = metrics.max_batched_tokens
    step = speed.prefill_a + speed.prefill_b * prompt + speed.prefill_c * prompt**2
    step += speed.decode_a + speed.decode_b * (metrics.max_batch or 0)
    step += speed.decode_c * (metrics.kv_capacity_tokens or 0) / (len(metrics.ranks) or 1)
    return min(max(LEAST_SECONDS, STEP_FACTOR * step), LONGEST_SECONDS)


async def wait_until_stalled(
    scrape: Callable[[], Awaitable[EngineMetrics]],
    speed: SpeedCoefficients | None,
    *,
    poll_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Polls until the engine has had work and none of its figures has moved for `stall_seconds`; returns the silence.

    KV usage and queue lengths count as movement, too: a long prompt is computed in many steps before its first token.
    A failed scrape proves neither work nor movement.
    """
    last: EngineMetrics | None = None
    moved_at = clock()
    while True:
        metrics = await scrape()
        now = clock()
        if metrics.progress is not None:
            works = bool(metrics.running or metrics.waiting)
            if not works or metrics != last:
                last, moved_at = metrics, now
            elif now - moved_at >= stall_seconds(speed, metrics):
                return now - moved_at
        await asyncio.sleep(POLL_SECONDS if poll_seconds is None else poll_seconds)
