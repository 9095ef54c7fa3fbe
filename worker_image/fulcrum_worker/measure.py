"""Measures a fresh engine for a moment, so that the capacity model starts from facts.

It happens before the worker is ready, so nothing of it competes with users, and rates over a ready worker's metrics
never contain it. Prompts are random token ids: none hits, and none is worth keeping in, the prefix cache.
"""

from __future__ import annotations

import json
import logging
import random
import time
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.fit import DecodeSample, PrefillSample, fit_speed

logger = logging.getLogger(__name__)

BUDGET_SECONDS: Final = 3.0
"""Readiness waits this long at most; a slow engine is measured with fewer and shorter prompts."""
_PREFILL_TOKENS: Final = (16, 64, 256, 1024, 4096, 16384)
_PREFILL_SHARE: Final = 0.6
_DECODE_SHAPES: Final = ((1, 16), (4, 16), (16, 16), (4, 128), (16, 128))
"""(batch, prompt tokens of each)."""
_DECODE_STEPS: Final = 6
_TOKEN_IDS: Final = range(10, 1000)
"""Ordinary ids of every vocabulary, without the special ones at its start."""


@dataclass(slots=True, kw_only=True)
class _Engine:
    """The engine under measurement, and what is left of the time."""

    session: aiohttp.ClientSession
    completions_url: str
    model: str
    deadline: float
    random_ids: random.Random = field(default_factory=random.Random)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    async def token_times(self, *, batch: int, prompt_tokens: int, steps: int) -> list[list[float]]:
        """Seconds from the request to each of `steps` tokens, for each prompt of a batch. Raises on any failure."""
        prompts = [self.random_ids.choices(_TOKEN_IDS, k=prompt_tokens) for _ in range(batch)]
        body = {
            "model": self.model,
            "prompt": prompts,
            "max_tokens": steps,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        times: list[list[float]] = [[] for _ in prompts]
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=max(0.05, self.seconds_left))
        async with self.session.post(self.completions_url, json=body, timeout=timeout) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    for choice in json.loads(line[6:])["choices"]:
                        # One chunk may carry several tokens when the server was busy.
                        times[choice["index"]] += [now - started] * len(choice.get("token_ids") or (0,))
        return times


async def measure_engine(
    session: aiohttp.ClientSession,
    engine_url: str,
    model: str,
    *,
    max_model_len: int | None,
    budget_seconds: float = BUDGET_SECONDS,
) -> SpeedCoefficients | None:
    """Fitted speed of an idle engine after at most `budget_seconds`; None when the time did not suffice."""
    started = time.monotonic()
    engine = _Engine(
        session=session,
        completions_url=f"{engine_url}/v1/completions",
        model=model,
        deadline=started + budget_seconds,
    )
    prefills: list[PrefillSample] = []
    decodes: list[DecodeSample] = []
    try:
        await engine.token_times(batch=1, prompt_tokens=8, steps=2)  # the first request pays for lazy initialisation
        await _measure_prefills(engine, prefills, budget_seconds * _PREFILL_SHARE, max_model_len)
        await _measure_decodes(engine, decodes)
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
    """Longer and longer prompts, until the next one would not fit into the time (or the model)."""
    decode_seconds = engine.seconds_left - budget_seconds
    for prompt_tokens in _PREFILL_TOKENS:
        if max_model_len is not None and prompt_tokens >= max_model_len:
            break
        if samples:
            growth = prompt_tokens / samples[-1].prompt_tokens
            if samples[-1].seconds * growth > engine.seconds_left - decode_seconds:
                break
        try:
            seconds = (await engine.token_times(batch=1, prompt_tokens=prompt_tokens, steps=1))[0][0]
        except aiohttp.ClientResponseError:
            break  # longer than the model or the KV cache allows
        samples.append(PrefillSample(prompt_tokens=prompt_tokens, seconds=seconds))


async def _measure_decodes(engine: _Engine, samples: list[DecodeSample]) -> None:
    """Batches of several sizes and contexts; a step is the time between tokens once every prompt has its first."""
    for batch, prompt_tokens in _DECODE_SHAPES:
        times = await engine.token_times(batch=batch, prompt_tokens=prompt_tokens, steps=_DECODE_STEPS)
        all_started = max(tokens[0] for tokens in times)
        # From the slowest prompt's first token on, the whole batch decodes together.
        slowest = max(times, key=lambda tokens: tokens[0])
        steps = len(slowest) - 1
        if steps > 0 and slowest[-1] > all_started:
            samples.append(
                DecodeSample(
                    batch=batch,
                    context_tokens=batch * (prompt_tokens + 1 + steps / 2),
                    seconds=(slowest[-1] - all_started) / steps,
                )
            )
