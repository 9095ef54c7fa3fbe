"""One canary: a two-leg request whose KV must really cross from one worker to another.

A pull that fails is hidden by the policy `recompute`: the decode engine computes the prompt itself and answers. So a
canary has a prompt that no cache knows, and counts only when vLLM's own counters say that the decode engine pulled it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, NamedTuple

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, TransferCounters
from fulcrum.gateway.api_formats.bodies import read_answer, read_request
from fulcrum.gateway.api_formats.inference_request import COMPLETIONS_PATH, InferenceRequest, ServedModel
from fulcrum.gateway.http.request import new_request_id
from fulcrum.gateway.http.upstream_answer import Answer, Failure, UpstreamError
from fulcrum.gateway.workers.progress import ask_load
from fulcrum.gateway.workers.registry import KnownRank
from fulcrum.routing import Pair

_SILENCE_SECONDS: Final = 40.0
"""Longest time without an answer in which neither worker of the pair computes. Above vLLM's own time-outs of a pull (up
to 35 s, 0.32, measured): after these it computes the prompt itself, and its counters say why."""
_LEG_SECONDS: Final = 120.0
"""Longest time without an answer of a pair that computes: it is slow, and tried again later."""
_BOOKED_SECONDS: Final = 3.0
"""Longest time in which vLLM and its agent count an answered canary."""
_POLL_SECONDS: Final = 0.3
_PROMPT_TOKENS: Final = 40
"""Length of a canary's prompt: more than a KV block of most engines, and little work."""
_TOKEN_IDS: Final = range(10, 1000)
"""Ordinary ids of every vocabulary."""
_OK: Final = 200
_SERVER_ERRORS: Final = 500


class Canary(NamedTuple):
    """A pair to try."""

    prefill: KnownRank
    decode: KnownRank
    attempt: int
    until: float
    """Loop time after which it is no longer worth trying."""

    @property
    def pair(self) -> Pair:
        return self.prefill.name, self.decode.name

    @property
    def drains(self) -> bool:
        """One of the two finishes its work: KV that a canary leaves there would be waited for."""
        return Role.DRAINING in (self.prefill.worker.role, self.decode.worker.role)

    @property
    def in_use(self) -> bool:
        return (self.prefill.worker.role, self.decode.worker.role) == (Role.PREFILL, Role.DECODE)


class CanaryRunner:
    """Runs canaries."""

    def __init__(self, served_name: str) -> None:
        self._served_name = served_name
        self._random = random.Random()  # noqa: S311 (prompts, no secrets)

    def _canary_request(self) -> InferenceRequest:
        prompt = self._random.choices(_TOKEN_IDS, k=_PROMPT_TOKENS)
        body = {"model": self._served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        return read_request(COMPLETIONS_PATH, msgspec.json.encode(body), ServedModel(name=self._served_name))

    async def run(self, canary: Canary) -> str:
        request, request_id = self._canary_request(), b"prewarm-" + new_request_id()
        answer = await self._leg(canary.prefill, request_id, request.prefill_body(), canary.prefill)
        read = read_answer(answer.body)
        kv = read.usable_kv if read is not None else None
        if kv is None:
            return "no_kv"
        before = await self._load(canary.decode)
        try:
            # A pull takes both: a prefill engine in a long step answers a handshake late.
            await self._leg(canary.decode, request_id, request.decode_body(kv), canary.decode, canary.prefill)
        except UpstreamError as error:
            if error.failure is Failure.ERROR_STATUS:
                return "decode_error"
            if error.failure is Failure.STALL and await self._pulls_nothing(canary.decode, before):
                return "decode_timeout"
            raise
        if canary.decode.worker.agent is None:
            return "warm"  # there is no agent to ask
        if before is None or before.transfers is None:
            return "unverified"
        return await self._verified(canary.decode, before.transfers)

    async def _verified(self, decode: KnownRank, before: TransferCounters) -> str:
        """Whether the decode engine has pulled a canary since `before`.

        Other requests pull at the same time, so any failure that was counted meanwhile counts as the canary's: a pair
        that is blamed for another's failure is tried again within seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BOOKED_SECONDS
        computed = False
        while loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            load = await self._load(decode)
            if load is None or load.transfers is None:
                continue
            after = load.transfers
            if after.pulled_tokens - before.pulled_tokens >= _PROMPT_TOKENS // 2:
                return "recomputed" if after.failed_transfers > before.failed_transfers else "warm"
            computed = after.computed_tokens - before.computed_tokens >= _PROMPT_TOKENS // 2
        # Neither pulled nor computed: the engine was restarted meanwhile, or does not count.
        return "recomputed" if computed else "unverified"

    async def _pulls_nothing(self, decode: KnownRank, before: LoadReport | None) -> bool:
        """Whether a canary without an answer waits for its KV, and not for its turn in a busy engine."""
        after = await self._load(decode)
        if before is None or before.transfers is None or after is None or after.transfers is None:
            return False
        if after.transfers.pulled_tokens != before.transfers.pulled_tokens:
            return False
        return after.transfers.failed_transfers > before.transfers.failed_transfers or after.running == 0

    async def _load(self, rank: KnownRank) -> LoadReport | None:
        try:
            report = await ask_load(rank.worker.agent)
        except (UpstreamError, TimeoutError, msgspec.DecodeError):
            return None
        return report.of_rank(rank.state.dp_rank or 0, len(rank.worker.ranks)) if report is not None else None

    async def _leg(self, rank: KnownRank, request_id: bytes, body: bytes, *computing: KnownRank) -> Answer:
        """The answer of `rank`, which is waited for as long as one of `computing` does. Raises UpstreamError."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        request = rank.engine.request(COMPLETIONS_PATH, request_id, body)
        asked = loop.create_task(rank.engine.exchange(request, sink=None, deadline=began_at + _LEG_SECONDS))
        try:
            while not (await asyncio.wait((asked,), timeout=_POLL_SECONDS))[0]:
                if all(each.worker.progress.still(began_at, _SILENCE_SECONDS, loop.time()) for each in computing):
                    raise UpstreamError(Failure.STALL, "the pair stands still")
        finally:
            asked.cancel()
        answer = asked.result()
        if answer.status != _OK:
            failure = Failure.ERROR_STATUS if answer.status >= _SERVER_ERRORS else Failure.PROTOCOL
            raise UpstreamError(failure, f"status {answer.status}")
        return answer
