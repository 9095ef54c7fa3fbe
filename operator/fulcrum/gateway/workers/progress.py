"""Whether a worker's engine computes, by what its agent says."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

import msgspec

from fulcrum.api.worker import LoadReport
from fulcrum.gateway.http.connection_pool import ConnectionPool
from fulcrum.gateway.http.upstream_answer import UpstreamError

_TIMEOUT_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 3.0
"""Longest wait for an answer that decides whether a worker is given up. Above the 2 s that an agent waits for its
engine."""
_STEPS: Final = 2.0
"""Least silence that counts, in steps of the length that the engine's longest step had in the last minutes: a step
cannot be interrupted, and shows nothing before its end."""
_OK: Final = 200
_decoder: Final = msgspec.json.Decoder(LoadReport)


async def ask_load(agent: ConnectionPool | None, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> LoadReport | None:
    """Ask a worker's agent; None: it has none. Raises UpstreamError, TimeoutError, msgspec.DecodeError."""
    if agent is None:
        return None
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    async with asyncio.timeout_at(deadline):
        answer = await agent.exchange(agent.question("/load"), sink=None, deadline=deadline)
    if answer.status != _OK:
        raise msgspec.DecodeError(f"status {answer.status}")
    try:
        return _decoder.decode(answer.body)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


class Progress:
    """When the engine of a worker last computed something. Times are the loop's."""

    def __init__(self, agent: ConnectionPool | None) -> None:
        self._agent = agent
        self._look: asyncio.Task[None] | None = None
        self._looked_at = -inf
        """When the last look that has ended began."""
        self.known = False
        """The last report told it."""
        self.moved_at = -inf
        """When its last step ended, as far as is known."""
        self._longest_step_seconds = 0.0

    def note(self, report: LoadReport | None, now: float) -> None:
        """What a report says that has just come."""
        progress = report.progress if report is not None else None
        self.known = progress is not None and progress.still_seconds is not None
        if progress is not None and progress.still_seconds is not None:
            self.moved_at = max(self.moved_at, now - progress.still_seconds)
            self._longest_step_seconds = progress.longest_step_seconds or 0.0

    def still(self, since: float, limit_seconds: float, now: float) -> bool:
        """Whether nothing was computed for `limit_seconds` since `since`. Ask again later: while the agent is asked,
        and has not answered, it is not so. An engine whose progress is unknown is one that makes none.
        """
        limit_seconds = max(limit_seconds, _STEPS * self._longest_step_seconds)
        over_at = max(since, self.moved_at) + limit_seconds
        if now <= over_at:
            return False
        if self._agent is None or self._looked_at >= over_at:
            return True
        self.look()
        return False

    def look(self) -> asyncio.Task[None]:
        """Ask now, unless that is under way."""
        if self._look is None:
            self._look = asyncio.get_running_loop().create_task(self._ask())
        return self._look

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        report = None
        try:
            report = await ask_load(self._agent, timeout_seconds=_LOOK_SECONDS)
        except (UpstreamError, TimeoutError, msgspec.DecodeError):
            pass  # unknown
        finally:
            self.note(report, loop.time())
            self._looked_at = began
            self._look = None
