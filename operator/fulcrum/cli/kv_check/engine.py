"""One running vLLM engine: greedy answers, and the log-probabilities of given tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from fulcrum.api.internal_token import ENV_WORKER, HEADER, authorization
from fulcrum.cli.kv_check.drift import Answer
from fulcrum.telemetry.reading import HEADERS, BodyReader

_ANSWER_BYTES: Final = 8 << 20
"""Most of an answer. One to the longest prompt of ours, of a thousand tokens, has 150 KB."""
_ERROR_LETTERS: Final = 300
_LIKELIEST: Final = 5
"""Tokens of each step whose log-probability is asked for: vLLM allows 20 at most, unless it is told otherwise."""
_CONNECT_SECONDS: Final = 10.0


class EngineError(Exception):
    """The engine cannot be compared; says what it answered."""


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]


class _Choice(msgspec.Struct):
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: tuple[dict[int, _Logprob] | None, ...] | None = None


class _Completion(msgspec.Struct):
    choices: tuple[_Choice]


class _Error(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Error


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What all requests to both engines have in common."""

    model: str
    """The name that the engines serve it under."""
    most_tokens: int
    """Of an answer."""
    timeout_seconds: float
    """Of a request."""
    token: str | None = field(default=None, repr=False)
    """What the engines ask for."""


class _Engine:
    """Asks one engine, one request at a time, so that the size of a batch changes no rounding."""

    def __init__(self, session: aiohttp.ClientSession, url: str, asking: Asking) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._asking = asking
        self._bodies = BodyReader()
        # KV of earlier runs, perhaps of another type and from a shared pool, is not found by another salt.
        self._salt = secrets.token_hex(16)

    async def answer(self, prompt: str | Sequence[int], reference: Answer | None) -> Answer:
        """Return the greedy answer, and how likely the reference's is (None: its own). Errors: EngineError."""
        choice = await self._complete(
            prompt,
            max_tokens=self._asking.most_tokens,
            logprobs=_LIKELIEST,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
        )
        tokens, asked, told = choice.token_ids, choice.prompt_token_ids, choice.logprobs
        if not tokens or not asked or told is None:
            raise EngineError(f"{self._url}: its answer has no token ids and log-probabilities; it is no vLLM engine")
        if not len(tokens) == len(told.token_logprobs) == len(told.top_logprobs) or not all(told.top_logprobs):
            raise EngineError(f"{self._url}: its answer has {len(tokens)} tokens and other log-probabilities")
        own = tokens if reference is None else reference.tokens
        return Answer(
            prompt=asked,
            tokens=tokens,
            decoded=told.token_logprobs,
            likeliest=tuple(self._by_id(step) for step in told.top_logprobs),
            forced=await self._forced(asked, own),
        )

    def _by_id(self, step: dict[str, float]) -> dict[int, float]:
        try:
            return {int(name.removeprefix("token_id:")): logprob for name, logprob in step.items()}
        except ValueError:
            raise EngineError(f"{self._url}: it names tokens by their text; it is no vLLM engine") from None

    async def _forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        choice = await self._complete([*prompt, *tokens], max_tokens=1, prompt_logprobs=0)
        told = (choice.prompt_logprobs or ())[len(prompt) :]
        found = [step[token] for step, token in zip(told, tokens, strict=False) if step is not None and token in step]
        if len(found) != len(tokens):
            raise EngineError(f"{self._url}: it does not tell the log-probabilities of a prompt; it is no vLLM engine")
        return tuple(each.logprob for each in found)

    async def _complete(self, prompt: str | Sequence[int], **more: Any) -> _Choice:
        body = {"model": self._asking.model, "prompt": prompt, "temperature": 0, "cache_salt": self._salt, **more}
        try:
            async with self._session.post(
                f"{self._url}/v1/completions", data=msgspec.json.encode(body), allow_redirects=False
            ) as response:
                text = await self._bodies.read(response, most_bytes=_ANSWER_BYTES)
        except TimeoutError:
            raise EngineError(f"{self._url} did not answer in time (--timeout)") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineError(f"{self._url}: {error}") from None
        if response.status != 200:
            raise EngineError(f"{self._url} answered HTTP {response.status}{_why(response.status, text)}")
        try:
            return msgspec.json.decode(text, type=_Completion).choices[0]
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(f"{self._url}: its answer is not one of vLLM: {error}") from None


def _why(status: int, text: bytes) -> str:
    if status == 401:
        return f": it asks for its cluster's internal token; put it into {ENV_WORKER}"
    try:
        message = msgspec.json.decode(text, type=_Refusal).error.message
    except (msgspec.DecodeError, RecursionError):
        return ""
    return f": {message[:_ERROR_LETTERS]}"


async def ask(
    url: str, asking: Asking, prompts: Sequence[str | Sequence[int]], reference: Sequence[Answer] | None = None
) -> tuple[Answer, ...]:
    """Return an engine's answers to all prompts. Errors: EngineError."""
    headers = {**HEADERS, "Content-Type": "application/json"}
    if asking.token is not None:
        headers[HEADER] = authorization(asking.token)
    timeout = aiohttp.ClientTimeout(total=asking.timeout_seconds, sock_connect=_CONNECT_SECONDS)
    references: Sequence[Answer | None] = reference or (None,) * len(prompts)
    found = []
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        engine = _Engine(session, url, asking)
        for prompt, known in zip(prompts, references, strict=True):
            found.append(await engine.answer(prompt, known))
    return tuple(found)
