"""An engine under measurement: batches that are sent to it, and the times that its own histograms have of them."""

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
from fulcrum_worker.engine_limits import MAX_BATCH, MAX_BATCHED_TOKENS
from fulcrum_worker.engine_metrics import metric_totals
from fulcrum_worker.engine_work import DECODE_TOKENS, decode_tokens

logger = logging.getLogger(__name__)

TOKENS_TIMED: Final = 8
"""Of each request, after its first one."""
_TOKEN_IDS: Final = range(10, 1000)
"""Ordinary ids of every vocabulary, without the special ones at its start."""
_PREFILL_TIME: Final = ("vllm:request_prefill_time_seconds",)
_STEP_TIME: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Histograms; the newer name first."""
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True, kw_only=True)
class MeasuredEngine:
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
        """Time that is left of what it should take."""
        return self.soft_deadline - time.monotonic()

    @property
    def timeout(self) -> aiohttp.ClientTimeout:
        """Of a request: time that is left in any case."""
        return aiohttp.ClientTimeout(total=max(0.05, self.deadline - time.monotonic()))

    async def generate(self, *, batch: int, prompt_tokens: int, output_tokens: int, **asked: object) -> None:
        """Runs one batch on each rank to its end; `asked`: further fields of its requests. Raises on any failure, and
        when the time is over.
        """
        shares = (self._generate(rank, batch, prompt_tokens, output_tokens, **asked) for rank in range(self.ranks))
        await asyncio.gather(*shares)

    async def _generate(self, rank: int, batch: int, prompt_tokens: int, output_tokens: int, **asked: object) -> None:
        body = {
            "model": self.model,
            "prompt": [self.random_ids.choices(_TOKEN_IDS, k=prompt_tokens) for _ in range(batch)],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            **asked,
        }
        headers = {HEADER_RANK: str(rank)} if self.ranks > 1 else {}
        completions = f"{self.url}/v1/completions"
        async with self.session.post(completions, json=body, headers=headers, timeout=self.timeout) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                pass

    async def metrics(self) -> str:
        """The page of its metrics."""
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
        before = totals_of(await self.metrics())
        await self.generate(batch=batch, prompt_tokens=prompt_tokens, output_tokens=TOKENS_TIMED + 1)
        while True:  # vLLM books a request's last step just after it has answered
            done = totals_of(await self.metrics()) - before
            requests = batch * self.ranks
            if done.prefills >= requests and done.tokens >= requests * TOKENS_TIMED:
                return done.prefill_seconds / done.prefills, done.decode_seconds / done.tokens
            await asyncio.sleep(_POLL_SECONDS)


@dataclass(slots=True, kw_only=True)
class PoolingEngine(MeasuredEngine):
    """An engine of a pooling model: its answers have no tokens."""

    async def _generate(self, rank: int, batch: int, prompt_tokens: int, output_tokens: int, **asked: object) -> None:
        prompts = [self.random_ids.choices(_TOKEN_IDS, k=prompt_tokens) for _ in range(batch)]
        # The one route that every pooling model has, whatever it is for.
        body = {"model": self.model, "input": prompts, "encoding_format": "base64"}
        headers = {HEADER_RANK: str(rank)} if self.ranks > 1 else {}
        async with self.session.post(
            f"{self.url}/pooling", json=body, headers=headers, timeout=self.timeout
        ) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                pass

    async def timed(self, *, batch: int, prompt_tokens: int) -> tuple[float, float]:
        """Mean seconds of a prompt while a batch ran, and 0 for the next token."""
        before = totals_of(await self.metrics())
        await self.generate(batch=batch, prompt_tokens=prompt_tokens, output_tokens=0)
        while True:
            done = totals_of(await self.metrics()) - before
            if done.prefills >= batch * self.ranks:
                return done.prefill_seconds / done.prefills, 0.0
            await asyncio.sleep(_POLL_SECONDS)


async def compile_ahead(
    session: aiohttp.ClientSession, engine_url: str, model: str, *, ranks: int, timeout_seconds: float
) -> None:
    """Ask once for log probabilities: vLLM compiles what they need for the first request that wants them, and whatever
    else the engine has stands still meanwhile, on a busy machine for long enough to be taken for stalled.
    """
    deadline = time.monotonic() + timeout_seconds
    engine = MeasuredEngine(
        session=session, url=engine_url, model=model, ranks=ranks, soft_deadline=deadline, deadline=deadline
    )
    try:
        await engine.generate(batch=1, prompt_tokens=8, output_tokens=2, logprobs=0)
    except (aiohttp.ClientError, TimeoutError) as error:
        logger.warning("not_compiled_ahead error=%r", str(error) or type(error).__name__)


@dataclass(frozen=True, slots=True)
class Totals:
    """What an engine has done so far."""

    prefills: float
    prefill_seconds: float
    tokens: float
    """Generated, after the first of their request."""
    decode_seconds: float

    def __sub__(self, before: Totals) -> Totals:
        return Totals(
            self.prefills - before.prefills,
            self.prefill_seconds - before.prefill_seconds,
            self.tokens - before.tokens,
            self.decode_seconds - before.decode_seconds,
        )


def totals_of(text: str) -> Totals:
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
    return Totals(prefills, prefill_seconds, steps if tokens is None else tokens, decode_seconds)
