"""Steady open-loop load of known questions, in a thread of its own, streamed and whole in turn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from answers import Question
from tests.machine import deadline_seconds

from fulcrum.replay import Client, Outcome, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question and what came of it."""

    question: Question
    streamed: bool
    outcome: Outcome
    detail: str
    text: str

    @property
    def right(self) -> bool:
        return self.outcome is Outcome.OK and self.text == self.question.answer

    @property
    def wrong(self) -> bool:
        """Looks whole and is not the answer, or is cut off and not the beginning of it."""
        if self.outcome is Outcome.OK:
            return self.text != self.question.answer
        return not self.question.answer.startswith(self.text)


MOST_UNDER_WAY = 24
"""Where engines keep up, fewer are under way. Where they do not, the next question is sent when one is answered."""


class SteadyLoad:
    """Sends `rate` questions a second from `__enter__` to `__exit__`, then waits for the last answer.

    `rate` may be set meanwhile: engines start sooner where fewer questions take the same few cores. No more than
    `MOST_UNDER_WAY` are under way: a test of what is lost must not become one of how fast the machine is.
    """

    def __init__(self, url: str, questions: Sequence[Question], *, rate: float) -> None:
        self._url = url
        self._questions = questions
        self.rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.answered: list[Answered] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def count(self, outcome: Outcome) -> int:
        return sum(answered.outcome is outcome for answered in self.answered)

    def has(self, answered: int) -> bool:
        return len(self.answered) >= answered

    def summary(self) -> str:
        """For a failing assertion: how often what happened."""
        kinds = Counter(
            f"{a.outcome} (wrong={a.wrong}): {'' if a.right else a.detail or a.text}" for a in self.answered
        )
        return "\n".join(f"{count} x {kind}" for kind, count in kinds.most_common())

    async def _run(self) -> None:
        async with Client(self._url, timeout_seconds=deadline_seconds(300)) as client, asyncio.TaskGroup() as tasks:
            number = 0
            loop = asyncio.get_running_loop()
            due = loop.time()
            places = asyncio.Semaphore(MOST_UNDER_WAY)
            while not self._stop.is_set():
                await places.acquire()
                question = self._questions[number % len(self._questions)]
                # With an even number of questions, each is streamed in one round and whole in the next.
                streamed = (number + number // len(self._questions)) % 2 == 0
                asked = tasks.create_task(self._ask(client, question, streamed=streamed))
                asked.add_done_callback(lambda _: places.release())
                number += 1
                due += 1 / self.rate
                await asyncio.sleep(max(0.0, due - loop.time()))

    async def _ask(self, client: Client, question: Question, *, streamed: bool) -> None:
        if streamed:
            body = {**question.body, "stream": True, "stream_options": {"include_usage": True}}
            record: Record = await client.stream(msgspec.json.encode(body), wanted_tokens=question.body["max_tokens"])
            outcome, detail, text = record.outcome, record.detail, record.text
        else:
            outcome, detail, text = await self._whole(question)
        self.answered.append(Answered(question=question, streamed=streamed, outcome=outcome, detail=detail, text=text))

    async def _whole(self, question: Question) -> tuple[Outcome, str, str]:
        """The verdict on an answer that is not streamed, by the same rules as `Outcome`."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=deadline_seconds(300))
        ) as session:
            try:
                async with session.post(f"{self._url}/v1/completions", json=question.body) as response:
                    content = await response.read()
            except aiohttp.ClientConnectorError as error:
                return Outcome.FAILED, f"cannot connect: {error}", ""
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                return Outcome.LOST, f"connection ended: {error!r}", ""
        if response.status == 200:
            return Outcome.OK, "", str(msgspec.json.decode(content)["choices"][0]["text"])
        detail = f"HTTP {response.status}: {content[:300].decode(errors='replace')}"
        if response.status in {429, 503} and "Retry-After" in response.headers:
            return Outcome.REJECTED, detail, ""
        return Outcome.FAILED, detail, ""
