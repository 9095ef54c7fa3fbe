"""Measures a fresh engine for a moment, so that the capacity model starts from facts.

It happens before the worker is ready, so nothing of it competes with users, and rates over a ready worker's metrics
never contain it. Prompts are random token ids: none hits, and none is worth keeping in, the prefix cache. Times are
those of vLLM's own histograms, taken in its engine process: a busy machine delays the agent more than the engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.engine_limits import MAX_BATCH
from fulcrum_worker.engine_metrics import metric_totals
from fulcrum_worker.fit import DecodeSample, PrefillSample, fit_speed

logger = logging.getLogger(__name__)

BUDGET_SECONDS: Final = 3.0
"""Readiness waits about this long; a slow engine is measured with fewer and shorter prompts."""
PATIENCE_SECONDS: Final = 60.0
"""How long an engine that is too slow for the budget is waited for, until a fit is possible at all."""
ENOUGH_SAMPLES: Final = 2
"""Samples of either kind without which there is no fit."""
_PREFILL_TOKENS: Final = (16, 64, 256, 1024, 4096, 16384)
_PREFILL_SHARE: Final = 0.6
_DECODE_SHAPES: Final = ((1, 16), (2, 16), (4, 16), (16, 16), (4, 128), (16, 96))
"""(batch, prompt tokens of each), as far as one step takes them. The prompts of a batch fit into vLLM's smallest
default token budget."""
_DECODE_STEPS: Final = 6
_TOKEN_IDS: Final = range(10, 1000)
"""Ordinary ids of every vocabulary, without the special ones at its start."""
_PREFILL_TIME: Final = ("vllm:request_prefill_time_seconds",)
_STEP_TIME: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Histograms; the newer name first."""
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True, kw_only=True)
class _Engine:
    """The engine under measurement, and what is left of the time."""

    session: aiohttp.ClientSession
    url: str
    model: str
    soft_deadline: float
    deadline: float
    random_ids: random.Random = field(default_factory=random.Random)

    @property
    def budget_left_seconds(self) -> float:
        return self.soft_deadline - time.monotonic()

    @property
    def timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=max(0.05, self.deadline - time.monotonic()))

    async def generate(self, *, batch: int, prompt_tokens: int, output_tokens: int) -> None:
        """Runs one batch to its end. Raises on any failure, and when the time is over."""
        body = {
            "model": self.model,
            "prompt": [self.random_ids.choices(_TOKEN_IDS, k=prompt_tokens) for _ in range(batch)],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        async with self.session.post(f"{self.url}/v1/completions", json=body, timeout=self.timeout) as response:
            response.raise_for_status()
            await response.read()

    async def histogram(self, names: tuple[str, ...]) -> tuple[float, float]:
        """Count and summed seconds of the first of these histograms that vLLM has. Raises LookupError without one."""
        totals = metric_totals(await self.metrics(), [f"{name}_{part}" for name in names for part in ("count", "sum")])
        for name in names:
            if f"{name}_count" in totals:
                return totals[f"{name}_count"], totals[f"{name}_sum"]
        raise LookupError(f"vLLM has none of {names}")

    async def metrics(self) -> str:
        async with self.session.get(f"{self.url}/metrics", timeout=self.timeout) as response:
            return await response.text()

    async def max_batch(self) -> float:
        """Most requests that the engine takes into one step."""
        return metric_totals(await self.metrics(), [MAX_BATCH]).get(MAX_BATCH, math.inf)

    async def timed(self, names: tuple[str, ...], *, batch: int, prompt_tokens: int, output_tokens: int) -> float:
        """Mean seconds that a histogram took up while a batch ran."""
        count_before, sum_before = await self.histogram(names)
        await self.generate(batch=batch, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        wanted = batch * max(1, output_tokens - 1)
        while True:  # vLLM books a request's last step just after it has answered
            count, total = await self.histogram(names)
            if count >= count_before + wanted:
                return (total - sum_before) / (count - count_before)
            await asyncio.sleep(_POLL_SECONDS)


async def measure_engine(
    session: aiohttp.ClientSession,
    engine_url: str,
    model: str,
    *,
    max_model_len: int | None,
    budget_seconds: float = BUDGET_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> SpeedCoefficients | None:
    """Fitted speed of an idle engine after about `budget_seconds`.

    Where that is too short for a fit (a busy machine), it goes on until one is possible, up to `patience_seconds`;
    None only after that, or when the engine refuses.
    """
    started = time.monotonic()
    engine = _Engine(
        session=session,
        url=engine_url,
        model=model,
        soft_deadline=started + budget_seconds,
        deadline=started + patience_seconds,
    )
    prefills: list[PrefillSample] = []
    decodes: list[DecodeSample] = []
    try:
        async with asyncio.timeout(patience_seconds):
            await engine.generate(batch=1, prompt_tokens=8, output_tokens=2)  # the first one pays for lazy set-up
            await _measure_prefills(engine, prefills, budget_seconds * _PREFILL_SHARE, max_model_len)
            await _measure_decodes(engine, prefills, decodes)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
        # Out of time, or an engine that talks otherwise; what was measured so far may suffice.
        logger.info("measure_cut_short reason=%s", type(error).__name__)
    speed = fit_speed(prefills, decodes)
    logger.info(
        "engine_measured seconds=%.2f prefills=%d decodes=%d fitted=%s",
        time.monotonic() - started,
        len(prefills),
        len(decodes),
        speed is not None,
    )
    return speed


async def _measure_prefills(
    engine: _Engine, samples: list[PrefillSample], budget_seconds: float, max_model_len: int | None
) -> None:
    """Longer and longer prompts, until there are enough and the next one would not fit into the time (or the model)."""
    decode_seconds = engine.budget_left_seconds - budget_seconds
    for prompt_tokens in _PREFILL_TOKENS:
        if max_model_len is not None and prompt_tokens >= max_model_len:
            break
        if len(samples) >= ENOUGH_SAMPLES:
            growth = prompt_tokens / samples[-1].prompt_tokens
            if samples[-1].seconds * growth > engine.budget_left_seconds - decode_seconds:
                break
        try:
            seconds = await engine.timed(_PREFILL_TIME, batch=1, prompt_tokens=prompt_tokens, output_tokens=1)
        except aiohttp.ClientResponseError:
            break  # longer than the model or the KV cache allows
        samples.append(PrefillSample(prompt_tokens=prompt_tokens, seconds=seconds))


async def _measure_decodes(engine: _Engine, prefills: list[PrefillSample], samples: list[DecodeSample]) -> None:
    """Batches of several sizes and contexts, until there are enough and the next one would not fit into the time."""
    prefill_seconds_per_token = prefills[-1].seconds / prefills[-1].prompt_tokens if prefills else 0.0
    max_batch = await engine.max_batch()
    shapes = [(batch, prompt_tokens) for batch, prompt_tokens in _DECODE_SHAPES if batch <= max_batch]
    for batch, prompt_tokens in shapes or _DECODE_SHAPES[:1]:
        if len(samples) >= ENOUGH_SAMPLES:
            step_seconds = 2 * samples[-1].seconds
            expected_seconds = batch * prompt_tokens * prefill_seconds_per_token + _DECODE_STEPS * step_seconds
            if expected_seconds > engine.budget_left_seconds:
                break
        seconds = await engine.timed(
            _STEP_TIME, batch=batch, prompt_tokens=prompt_tokens, output_tokens=_DECODE_STEPS + 1
        )
        context_tokens = batch * (prompt_tokens + (_DECODE_STEPS + 1) / 2)
        samples.append(DecodeSample(batch=batch, context_tokens=context_tokens, seconds=seconds))
