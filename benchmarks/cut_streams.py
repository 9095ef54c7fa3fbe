"""Streams with known greedy answers, asked for while workers are killed, and checked token by token."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import aiohttp
from local_cluster import Cluster
from this_machine import deadline_seconds

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
OUTPUT_TOKENS: Final = 72
_STAGGER_SECONDS: Final = 0.1
MIN_MARGIN: Final = 0.4
"""The default: between the two likeliest tokens of each step, in nats. A step that is nearly a tie may fall either way
on any engine, because rounding depends on what else is in its batch: this says nothing of lost or repeated tokens."""
_WORDS: Final = (
    "river",
    "apple",
    "seven",
    "window",
    "green",
    "paper",
    "stone",
    "cloud",
    "lemon",
    "north",
    "train",
    "light",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A streamed request and the only right answer to it."""

    path: str
    body: dict[str, Any]
    ids: tuple[int, ...]
    text: str
    finish: str
    prompt_tokens: int


@dataclass(slots=True, kw_only=True)
class Stream:
    """One answer as its client sees it."""

    question: Question
    decode: str = ""
    """Worker that the gateway named when the stream began."""
    events: list[dict[str, Any]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """When each event came (monotonic seconds)."""
    done: bool = False
    problem: str = ""

    @property
    def tokens(self) -> int:
        return sum(len(choice.get("token_ids") or []) for choice in self._choices())

    def wrong(self) -> str:
        """What is not as in the undisturbed stream; empty: nothing."""
        question = self.question
        if self.problem or not self.done:
            return self.problem or "no end mark"
        choices = self._choices()
        text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)
        ids = tuple(token for choice in choices for token in choice.get("token_ids") or [])
        finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        roles = [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})]
        usages = [event["usage"] for event in self.events if not event["choices"]]
        made = len(question.ids)
        usage = {
            "prompt_tokens": question.prompt_tokens,
            "total_tokens": question.prompt_tokens + made,
            "completion_tokens": made,
        }
        checks = (
            (text == question.text, f"text {text!r} is not {question.text!r}"),
            (ids == question.ids, f"token ids {ids} are not {question.ids}"),
            (finishes == [question.finish], f"finish reasons {finishes}"),
            (roles == (["assistant"] if question.path == CHAT else []), f"roles {roles}"),
            (usages == [usage], f"usage {usages} is not {usage}"),
            (len({(event["id"], event["created"], event["model"]) for event in self.events}) == 1, "ids of chunks"),
        )
        return "; ".join(message for holds, message in checks if not holds)

    def longest_gap_seconds(self) -> float:
        """Between two events."""
        return max((after - before for before, after in zip(self.at, self.at[1:], strict=False)), default=0.0)

    def _choices(self) -> list[dict[str, Any]]:
        return [event["choices"][0] for event in self.events if event["choices"]]


def questions_of(
    cluster: Cluster, count: int, *, output_tokens: int = OUTPUT_TOKENS, min_margin: float = MIN_MARGIN
) -> list[Question]:
    """The first `count` questions, as many of each kind as can be, whose every greedy step wins by `min_margin`."""
    found: dict[str, list[Question]] = {TEXT: [], CHAT: []}
    for path, asked in _candidates():
        if len(found[path]) >= (count + 1) // 2:
            continue
        body = {"model": cluster.name, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True, **asked}
        logprobs = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
        answer = cluster.ask_engine(path, {**body, **logprobs, "return_token_ids": True})
        choice = answer["choices"][0]
        if path == CHAT:
            steps = [[top["logprob"] for top in step["top_logprobs"]] for step in choice["logprobs"]["content"]]
            text = choice["message"]["content"]
        else:
            steps = [list(top.values()) for top in choice["logprobs"]["top_logprobs"]]
            text = choice["text"]
        if min(_margin(step) for step in steps) < min_margin:
            continue
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        found[path].append(
            Question(
                path=path, body=streamed, ids=tuple(choice["token_ids"]), text=text, finish=choice["finish_reason"],
                prompt_tokens=answer["usage"]["prompt_tokens"],
            )
        )  # fmt: skip
        if sum(map(len, found.values())) >= count:
            break
    questions = [*found[TEXT], *found[CHAT]]
    if len(found[TEXT]) < 2 or len(found[CHAT]) < 2:
        raise AssertionError(f"only {len(found[TEXT])} texts and {len(found[CHAT])} chats have a firm answer")
    return questions


def _candidates() -> Iterable[tuple[str, dict[str, Any]]]:
    for number, word in enumerate(_WORDS):
        others = _WORDS[number + 1 :] + _WORDS[:number]
        line = ", ".join((word, *others[:5]))
        yield TEXT, {"prompt": "Repeat: " + "; ".join([line] * 6) + ";"}
        yield TEXT, {"prompt": "".join(f"Line {n}: the {word}.\n" for n in range(1, 16 + number))}
        yield TEXT, {"prompt": "Count: " + ", ".join(str(n) for n in range(1, 30 + number)) + ","}
        many = [{"role": "user", "content": f"Say: {line}"}, {"role": "assistant", "content": " ".join([line] * 6)}]
        yield CHAT, {"messages": [*many, {"role": "user", "content": "Say it again, many times."}]}
        counted = ", ".join(str(n) for n in range(1, 60 + number))
        count = [{"role": "user", "content": "Count from 1."}, {"role": "assistant", "content": counted}]
        yield CHAT, {"messages": [*count, {"role": "user", "content": "Count from 1 once more."}]}


def _margin(logprobs: Iterable[float]) -> float:
    likeliest, *others = sorted(logprobs, reverse=True)
    return likeliest - others[0] if others else math.inf


class Streams:
    """Keeps `count` streams open, one after the other at each place, from `__enter__` to `__exit__`, in a thread."""

    def __init__(self, url: str, questions: Sequence[Question], count: int) -> None:
        self._url = url
        self._questions = questions
        self._count = count
        self._stopping = False
        self._asked = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.paused = False
        """Ask for no more for now: a worker that starts wants the machine."""
        self.open: list[Stream] = []
        self.ended: list[Stream] = []
        self.refused = 0
        """Requests that were turned away at the door."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()

    def within(self, worker: str) -> list[Stream]:
        """Open streams that `worker` is in the middle of."""
        return [one for one in list(self.open) if one.decode == worker and 2 <= one.tokens < len(one.question.ids) - 4]

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=deadline_seconds(180))
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self._place(session, number) for number in range(self._count)))

    async def _place(self, session: aiohttp.ClientSession, number: int) -> None:
        late = True
        while not self._stopping:
            if self.paused:
                await asyncio.sleep(0.1)
                late = True
                continue
            if late:
                await asyncio.sleep(_STAGGER_SECONDS * number)  # so that they are cut in different places
                late = False
            stream = Stream(question=self._questions[self._asked % len(self._questions)])
            self._asked += 1
            self.open.append(stream)
            try:
                await self._ask(session, stream)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                since = f"{time.monotonic() - stream.at[-1]:.0f} s after the last" if stream.at else "without any"
                stream.problem = f"{error!r}: {stream.tokens} tokens by {stream.decode}, {since}"
            self.open.remove(stream)
            if stream.at or stream.problem:
                self.ended.append(stream)
            else:
                self.refused += 1
                await asyncio.sleep(0.5)

    async def _ask(self, session: aiohttp.ClientSession, stream: Stream) -> None:
        question = stream.question
        async with session.post(self._url + question.path, json=question.body) as response:
            if response.status == 429:
                return
            if response.status != 200:
                stream.problem = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            stream.decode = response.headers["x-fulcrum-path"].split(",")[-1]
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if stream.done:
                    stream.problem = "events after the end mark"
                elif line.startswith(b"data: [DONE]"):
                    stream.done = True
                else:
                    event = json.loads(line.removeprefix(b"data: "))
                    if "error" in event:
                        stream.problem = f"error: {event['error']['message']}"
                        return
                    stream.events.append(event)
                    stream.at.append(time.monotonic())
