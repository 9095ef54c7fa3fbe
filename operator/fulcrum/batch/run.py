"""Has the lines of one batch answered, those first that come first, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fulcrum.batch.lines import RequestLine, answered, decode, read_lines, unanswered
from fulcrum.batch.pace import Pace
from fulcrum.batch.results import EXPIRED_CODE, Results
from fulcrum.batch.sender import Again, Sender

_MOST_ATTEMPTS: Final = 5
"""Times that a line is sent which the gateway fails at; being told to come back, or not reaching it, does not count."""
_AHEAD_LINES: Final = 64
_AHEAD_BYTES: Final = 1024 * 1024
"""Lines that are read before they are sent."""
_OK: Final = 200
_EXPIRED: Final = "This request was not executed before the completion window of its batch ended."


class Run:
    """One batch under way."""

    def __init__(
        self,
        *,
        owner: str,
        endpoint: str,
        content: Path,
        max_line_bytes: int,
        results: Results,
        sender: Sender,
        pace: Pace,
        slots: asyncio.Semaphore,
        counted: Callable[[], None],
    ) -> None:
        """`slots` are those of all batches; `counted` is called after each line that has a result."""
        self._owner = owner
        self._endpoint = endpoint
        self._content = content
        self._max_line_bytes = max_line_bytes
        self._results = results
        self._sender = sender
        self._pace = pace
        self._slots = slots
        self._counted = counted
        self._reading = asyncio.Lock()
        self._ahead: list[RequestLine] = []
        self._more = True

    async def all_lines(self, workers: int) -> None:
        """Have every line answered that has no result yet. Raises OSError where a result cannot be kept."""
        with self._content.open("rb") as file:
            lines = self._open_lines(read_lines(file, self._max_line_bytes))
            tasks = [asyncio.create_task(self._work(lines)) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def expire(self) -> None:
        """Write for every line without a result that it came too late. Raises OSError."""
        self._ahead, self._more = [], True
        with self._content.open("rb") as file:
            lines = self._open_lines(read_lines(file, self._max_line_bytes))
            while (line := await self._next(lines)) is not None:
                result = unanswered(line.custom_id, EXPIRED_CODE, _EXPIRED)
                await self._results.append(line.custom_id, result, failed=True)
                self._results.expired = True
                self._counted()

    def _open_lines(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[RequestLine, int]]:
        """Those without a result, and their bytes."""
        for _, raw in lines:
            line = decode(raw)
            if line.custom_id not in self._results.done:
                yield line, len(raw)

    async def _next(self, lines: Iterator[tuple[RequestLine, int]]) -> RequestLine | None:
        async with self._reading:
            if not self._ahead and self._more:
                self._ahead = await asyncio.to_thread(_read_ahead, lines)
                self._more = bool(self._ahead)
            return self._ahead.pop() if self._ahead else None

    async def _work(self, lines: Iterator[tuple[RequestLine, int]]) -> None:
        while (line := await self._next(lines)) is not None:
            result, failed = await self._answer(line)
            # Not cancelled half-way: what is on the disk counts.
            await asyncio.shield(self._results.append(line.custom_id, result, failed=failed))
            self._counted()

    async def _answer(self, line: RequestLine) -> tuple[bytes, bool]:
        """The result of a line, and whether it is for the error file."""
        attempts = 0
        while True:
            await self._pace.enter()
            try:
                async with self._slots:
                    answer = await self._sender.send(self._owner, self._endpoint, bytes(line.body))
            finally:
                self._pace.leave()
            if isinstance(answer, Again):
                if answer.answer is None or (attempts := attempts + 1) < _MOST_ATTEMPTS:
                    self._pace.refused(answer.wait_seconds)
                    continue
                answer = answer.answer
            self._pace.answered()
            result = answered(line.custom_id, answer.status, answer.request_id, answer.body)
            return result, answer.status != _OK


def _read_ahead(lines: Iterator[tuple[RequestLine, int]]) -> list[RequestLine]:
    """The next lines, the last one first."""
    ahead: list[RequestLine] = []
    size = 0
    for line, line_bytes in lines:
        ahead.append(line)
        size += line_bytes
        if len(ahead) >= _AHEAD_LINES or size >= _AHEAD_BYTES:
            break
    ahead.reverse()
    return ahead
