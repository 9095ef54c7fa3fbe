"""Measures a fresh engine for a moment, so that the capacity model starts from facts.

It happens before the worker is ready, so nothing of it competes with users, and rates over a ready worker's metrics
never contain it. Prompts are random token ids: none hits, and none is worth keeping in, the prefix cache. Answers are
streamed, as most users ask for them: where the engine has few cores, each piece takes some of its time. Times are those
of vLLM's own histograms, taken in its engine process: a busy machine delays the agent more than the engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final

import aiohttp

from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.fit import DecodeSample, PrefillSample, fit_pooling, fit_speed
from fulcrum_worker.measured_engine import TOKENS_TIMED, MeasuredEngine, PoolingEngine

logger = logging.getLogger(__name__)

BUDGET_SECONDS: Final = 3.0
"""Readiness waits about this long; a slow engine is measured with fewer and shorter prompts."""
START_SHARE: Final = 0.1
"""An engine that took long to start may be measured for this share of that: it takes long for all it does."""
LONGEST_BUDGET_SECONDS: Final = 15.0
PATIENCE_SECONDS: Final = 60.0
"""How long an engine that is too slow for the budget is waited for, until a fit is possible at all."""
PATIENCE_SHARE: Final = 0.75
"""The same as a share of the engine's own start. An engine of SmolLM2 that is held to a tenth of a slow core needs
about 30 s for two prompt lengths, after a start of 60 s."""
LEAST_PATIENCE_SECONDS: Final = 15.0
ENOUGH_PROMPTS: Final = 3
"""Lengths of prompts that are measured whatever the budget: what two short ones say of a long one is mostly noise."""
_PREFILL_TOKENS: Final = (16, 64, 256, 1024, 4096, 16384)
_LEAST_GROWTH: Final = 1.5
"""A prompt that is cut to what the time allows is still this much longer than the one before, or left out."""
_PREFILL_SHARE: Final = 0.6
_ROUND_SHARE: Final = 0.05
"""What takes less than this share of the budget is done again, up to `_MOST_ROUNDS` in all: short times are the noisy
ones. The quickest round counts. Other engines that start on the same machine make a round slower, nothing makes it
quicker; how much slower it is while others work is learnt later, from what requests show."""
_MOST_ROUNDS: Final = 4
_BATCHES: Final = (8, 32, 128, 512)
"""As far as one step takes them; a mixture of experts that is measured with few requests reads few of its experts."""
_CONTEXTS: Final = (16, 96)
"""Prompt tokens of each request in a batch, as far as one step takes all of them: those that come in later steps would
count their prefills as the others' decode steps."""
_SETTLED: Final = 0.8
"""A request that takes this share of the quickest before it, or more, is no quicker: the engine has settled."""


def budget_for(start_seconds: float) -> float:
    """Seconds that an engine which took `start_seconds` to come up is measured for."""
    return min(LONGEST_BUDGET_SECONDS, max(BUDGET_SECONDS, START_SHARE * start_seconds))


def patience_for(start_seconds: float) -> float:
    """Seconds within which the measurement of an engine that took `start_seconds` to come up ends in any case."""
    return min(PATIENCE_SECONDS, max(LEAST_PATIENCE_SECONDS, PATIENCE_SHARE * start_seconds))


async def measure_engine(
    session: aiohttp.ClientSession,
    engine_url: str,
    model: str,
    *,
    max_model_len: int | None,
    ranks: int = 1,
    pools: bool = False,
    budget_seconds: float = BUDGET_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> SpeedCoefficients | None:
    """Fitted speed of an idle engine, of each of its ranks while all work, after about `budget_seconds`.

    Where that is too short for a fit (a busy machine), it goes on until one is possible, up to `patience_seconds`;
    None only after that, or when the engine refuses. `pools`: its model is a pooling one, which has only prompts to be
    measured.
    """
    started = time.monotonic()
    engine = (PoolingEngine if pools else MeasuredEngine)(
        session=session,
        url=engine_url,
        model=model,
        ranks=ranks,
        soft_deadline=started + budget_seconds,
        deadline=started + patience_seconds,
    )
    prefills: list[PrefillSample] = []
    decodes: list[DecodeSample] = []
    try:
        async with asyncio.timeout(patience_seconds):
            await _settle(engine)
            await _measure_prompts(engine, prefills, decodes, budget_seconds, max_model_len)
            if not pools:
                await _measure_batches(engine, prefills, decodes)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
        # Out of time, or an engine that talks otherwise; what was measured so far may suffice.
        logger.info("measure_cut_short reason=%s", type(error).__name__)
    speed = fit_pooling(prefills) if pools else fit_speed(prefills, decodes)
    logger.info(
        "engine_measured seconds=%.2f prefills=%d decodes=%d fitted=%s",
        time.monotonic() - started,
        len(prefills),
        len(decodes),
        speed is not None,
    )
    return speed


async def _settle(engine: MeasuredEngine) -> None:
    """Short requests until one takes about as long as the quickest before it: the first ones pay for lazy set-up."""
    quickest_seconds = math.inf
    while True:
        started = time.monotonic()
        await engine.generate(batch=1, prompt_tokens=8, output_tokens=2)
        seconds = time.monotonic() - started
        if seconds >= _SETTLED * quickest_seconds:
            return
        quickest_seconds = seconds


async def _measure_prompts(
    engine: MeasuredEngine,
    prefills: list[PrefillSample],
    decodes: list[DecodeSample],
    budget_seconds: float,
    max_model_len: int | None,
) -> None:
    """One request at a time, with longer and longer prompts, until there are enough and the next one would not fit into
    the time (or the model). Each says how long its prefill takes, and the steps after it."""
    for wanted_tokens in _PREFILL_TOKENS:
        prompt_tokens = wanted_tokens
        if len(prefills) >= ENOUGH_PROMPTS:
            last = prefills[-1]
            left_seconds = engine.budget_left_seconds - budget_seconds * (1 - _PREFILL_SHARE)
            left_seconds -= TOKENS_TIMED * decodes[-1].seconds
            prompt_tokens = min(prompt_tokens, int(last.prompt_tokens * left_seconds / last.seconds))
            if prompt_tokens < last.prompt_tokens * _LEAST_GROWTH:
                break
        if max_model_len is not None and prompt_tokens + TOKENS_TIMED >= max_model_len:
            break
        try:
            await _measure(
                engine, prefills, decodes, batch=1, prompt_tokens=prompt_tokens, whole_seconds=budget_seconds
            )
        except aiohttp.ClientResponseError:
            break  # longer than the model or the KV cache allows
        if prompt_tokens < wanted_tokens:
            break


async def _measure_batches(engine: MeasuredEngine, prefills: list[PrefillSample], decodes: list[DecodeSample]) -> None:
    """Larger and larger batches in two contexts, as long as they fit into the time."""
    seconds_per_token = prefills[-1].seconds / prefills[-1].prompt_tokens if prefills else 0.0
    most, most_tokens = await engine.limits()
    batches = sorted({int(min(batch, most, most_tokens // _CONTEXTS[0])) for batch in _BATCHES} - {0, 1})
    for batch in batches:
        contexts = [tokens for tokens in _CONTEXTS if batch * tokens <= most_tokens]
        # A step takes at most as many times longer as it has more requests; usually far less.
        step_seconds = 2 * decodes[-1].seconds if decodes else 0.0
        rounds_seconds = sum(
            2 * batch * tokens * seconds_per_token + TOKENS_TIMED * step_seconds for tokens in contexts
        )
        if rounds_seconds > engine.budget_left_seconds:
            if len(decodes) == len(prefills):  # an engine that slow is measured with two requests, whatever the budget
                await _measure(engine, [], decodes, batch=2, prompt_tokens=_CONTEXTS[0], whole_seconds=0.0)
            return
        # The first batch of a size pays for what is compiled for it.
        await engine.generate(batch=batch, prompt_tokens=contexts[0], output_tokens=2)
        for prompt_tokens in contexts:
            await _measure(engine, [], decodes, batch=batch, prompt_tokens=prompt_tokens, whole_seconds=0.0)


async def _measure(
    engine: MeasuredEngine,
    prefills: list[PrefillSample],
    decodes: list[DecodeSample],
    *,
    batch: int,
    prompt_tokens: int,
    whole_seconds: float,
) -> None:
    """Add what a batch takes in the quickest of the rounds that a small share of `whole_seconds` is enough for."""
    started = time.monotonic()
    rounds: list[tuple[float, float]] = []
    while not rounds or (len(rounds) < _MOST_ROUNDS and time.monotonic() - started < _ROUND_SHARE * whole_seconds):
        rounds.append(await engine.timed(batch=batch, prompt_tokens=prompt_tokens))
    prefill_seconds, step_seconds = (min(times) for times in zip(*rounds, strict=True))
    prefills.append(PrefillSample(prompt_tokens=prompt_tokens, seconds=prefill_seconds))
    context_tokens = batch * (prompt_tokens + (TOKENS_TIMED + 1) / 2)
    decodes.append(DecodeSample(batch=batch, context_tokens=context_tokens, seconds=step_seconds))
