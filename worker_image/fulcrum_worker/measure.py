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
import random
import time
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from fulcrum.api.names import HEADER_RANK
from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.engine_limits import MAX_BATCH, MAX_BATCHED_TOKENS
from fulcrum_worker.engine_metrics import metric_totals
from fulcrum_worker.engine_work import DECODE_TOKENS, decode_tokens
from fulcrum_worker.fit import DecodeSample, PrefillSample, fit_speed

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
_DECODE_TOKENS: Final = 8
"""Of each request, after its first one."""
_SETTLED: Final = 0.8
"""A request that takes this share of the quickest before it, or more, is no quicker: the engine has settled."""
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
    ranks: int
    """Each works on as much as the others: ranks step together, so their speed is that of all at work."""
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
        """Runs one batch on each rank to its end. Raises on any failure, and when the time is over."""
        shares = (self._generate(rank, batch, prompt_tokens, output_tokens) for rank in range(self.ranks))
        await asyncio.gather(*shares)

    async def _generate(self, rank: int, batch: int, prompt_tokens: int, output_tokens: int) -> None:
        body = {
            "model": self.model,
            "prompt": [self.random_ids.choices(_TOKEN_IDS, k=prompt_tokens) for _ in range(batch)],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {HEADER_RANK: str(rank)} if self.ranks > 1 else {}
        completions = f"{self.url}/v1/completions"
        async with self.session.post(completions, json=body, headers=headers, timeout=self.timeout) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                pass

    async def metrics(self) -> str:
        async with self.session.get(f"{self.url}/metrics", timeout=self.timeout) as response:
            return await response.text()

    async def limits(self) -> tuple[float, float]:
        """Most requests, and most tokens, that the engine takes into one step."""
        totals = metric_totals(await self.metrics(), [MAX_BATCH, MAX_BATCHED_TOKENS])
        return totals.get(MAX_BATCH, math.inf), totals.get(MAX_BATCHED_TOKENS, math.inf)

    async def timed(self, *, batch: int, prompt_tokens: int) -> tuple[float, float]:
        """Mean seconds of a prefill, and of a request's next token, while a batch ran.

        With speculative decoding a step gives a request several tokens, so tokens are counted and not steps.
        """
        before = _totals(await self.metrics())
        await self.generate(batch=batch, prompt_tokens=prompt_tokens, output_tokens=_DECODE_TOKENS + 1)
        while True:  # vLLM books a request's last step just after it has answered
            done = _totals(await self.metrics()) - before
            requests = batch * self.ranks
            if done.prefills >= requests and done.tokens >= requests * _DECODE_TOKENS:
                return done.prefill_seconds / done.prefills, done.decode_seconds / done.tokens
            await asyncio.sleep(_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class _Totals:
    """What an engine has done so far."""

    prefills: float
    prefill_seconds: float
    tokens: float
    """Generated, after the first of their request."""
    decode_seconds: float

    def __sub__(self, before: _Totals) -> _Totals:
        return _Totals(
            self.prefills - before.prefills,
            self.prefill_seconds - before.prefill_seconds,
            self.tokens - before.tokens,
            self.decode_seconds - before.decode_seconds,
        )


def _totals(text: str) -> _Totals:
    """Read vLLM's metrics. Raises LookupError where they lack something."""
    names = [f"{name}_{part}" for name in (*_PREFILL_TIME, *_STEP_TIME) for part in ("count", "sum")]
    totals = metric_totals(text, (*names, *DECODE_TOKENS))

    def first(of: tuple[str, ...]) -> tuple[float, float]:
        for name in of:
            if f"{name}_count" in totals:
                return totals[f"{name}_count"], totals[f"{name}_sum"]
        raise LookupError(f"vLLM has none of {of}")

    (prefills, prefill_seconds), (steps, decode_seconds) = first(_PREFILL_TIME), first(_STEP_TIME)
    tokens = decode_tokens(totals)
    return _Totals(prefills, prefill_seconds, steps if tokens is None else tokens, decode_seconds)


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
    budget_seconds: float = BUDGET_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> SpeedCoefficients | None:
    """Fitted speed of an idle engine, of each of its ranks while all work, after about `budget_seconds`.

    Where that is too short for a fit (a busy machine), it goes on until one is possible, up to `patience_seconds`;
    None only after that, or when the engine refuses.
    """
    started = time.monotonic()
    engine = _Engine(
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
            await _measure_batches(engine, prefills, decodes)
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


async def _settle(engine: _Engine) -> None:
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
    engine: _Engine,
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
            left_seconds -= _DECODE_TOKENS * decodes[-1].seconds
            prompt_tokens = min(prompt_tokens, int(last.prompt_tokens * left_seconds / last.seconds))
            if prompt_tokens < last.prompt_tokens * _LEAST_GROWTH:
                break
        if max_model_len is not None and prompt_tokens + _DECODE_TOKENS >= max_model_len:
            break
        try:
            await _measure(
                engine, prefills, decodes, batch=1, prompt_tokens=prompt_tokens, whole_seconds=budget_seconds
            )
        except aiohttp.ClientResponseError:
            break  # longer than the model or the KV cache allows
        if prompt_tokens < wanted_tokens:
            break


async def _measure_batches(engine: _Engine, prefills: list[PrefillSample], decodes: list[DecodeSample]) -> None:
    """Larger and larger batches in two contexts, as long as they fit into the time."""
    seconds_per_token = prefills[-1].seconds / prefills[-1].prompt_tokens if prefills else 0.0
    most, most_tokens = await engine.limits()
    batches = sorted({int(min(batch, most, most_tokens // _CONTEXTS[0])) for batch in _BATCHES} - {0, 1})
    for batch in batches:
        contexts = [tokens for tokens in _CONTEXTS if batch * tokens <= most_tokens]
        # A step takes at most as many times longer as it has more requests; usually far less.
        step_seconds = 2 * decodes[-1].seconds if decodes else 0.0
        rounds_seconds = sum(
            2 * batch * tokens * seconds_per_token + _DECODE_TOKENS * step_seconds for tokens in contexts
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
    engine: _Engine,
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
    context_tokens = batch * (prompt_tokens + (_DECODE_TOKENS + 1) / 2)
    decodes.append(DecodeSample(batch=batch, context_tokens=context_tokens, seconds=step_seconds))
