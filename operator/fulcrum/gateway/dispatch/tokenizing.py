"""Requests that any one worker answers from its tokenizer: no admission, no second leg, no stream."""

from __future__ import annotations

import asyncio
from typing import Final

from fulcrum.api.names import Role
from fulcrum.gateway.api_formats.error_object import error_form
from fulcrum.gateway.dispatch.blame import Blame
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.leg import LegSender
from fulcrum.gateway.dispatch.leg_failure import LegFailedError
from fulcrum.gateway.errors import no_worker
from fulcrum.gateway.workers.registry import KnownRank, WorkerRegistry

_OK: Final = 200
_SILENCE_SECONDS: Final = 10.0
"""Longest silence of a worker that computes nothing, before another one is asked. A tokenizer answers in milliseconds,
behind a busy event loop in a second or two."""


class Tokenizing:
    """Passes such requests to workers."""

    def __init__(
        self, sender: LegSender, blame: Blame, registry: WorkerRegistry, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sender = sender
        self._blame = blame
        self._registry = registry
        self._loop = loop

    async def run(self, exchange: Exchange, body: bytes) -> None:
        """Have the request answered by a worker. Raises RequestError."""
        response = exchange.response
        tried: set[str] = set()
        while True:
            rank = self._pick(tried)
            tried.add(rank.worker.name)
            exchange.attempts += 1
            exchange.path = rank.name
            response.path_headers = b"x-fulcrum-path: %b\r\n" % rank.name.encode()
            try:
                answer = await self._sender.send(
                    "tokenize", exchange, rank, exchange.route, body, silence_seconds=_SILENCE_SECONDS
                )
            except LegFailedError as failed:
                self._blame.try_elsewhere(exchange, failed)
            else:
                self._blame.convict(exchange)
                body = answer.body
                if answer.status != _OK:
                    body = error_form(exchange.route).passed_on(answer.status, body)
                response.send(answer.status, answer.content_type, body)
                return

    def _pick(self, tried: set[str]) -> KnownRank:
        """The least loaded worker, one that was not tried first. Raises RequestError (503)."""
        best: KnownRank | None = None
        best_key = (True, True, 0)
        for rank in self._registry.ranks:
            if rank.worker.role is Role.DRAINING:
                continue
            key = (rank.worker.name in tried, rank.worker.suspect, rank.state.in_flight)
            if best is None or key < best_key:
                best, best_key = rank, key
        if best is None:
            raise no_worker("No worker is ready.")
        return best
