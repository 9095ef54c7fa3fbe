"""Open-loop replay: requests go out when the trace says, whatever became of those before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from fulcrum.replay.client import Client
from fulcrum.replay.endpoint import Endpoint
from fulcrum.replay.outcome import Outcome, Record
from fulcrum.replay.prompts import PromptWriter
from fulcrum.simulation.traffic import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a replay stands."""

    sent: int
    ended: int
    lost: int
    of: int


async def replay(
    client: Client,
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    seed: int = 0,
    max_retries: int = 0,
    concurrency_limit: int | None = None,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[Record]:
    """Replays `requests` and waits for the last answer; `stop` ends it at once, without requests that are under way.

    Beyond `concurrency_limit` requests under way, a due request is not sent and counts as failed: waiting for room
    would close the loop.
    """
    stop = stop or asyncio.Event()
    writer = PromptWriter(tokens_per_word=endpoint.tokens_per_word, seed=seed)
    records: list[Record] = []
    under_way: set[asyncio.Task[None]] = set()
    sent = 0

    def tell() -> None:
        lost = sum(record.outcome is Outcome.LOST for record in records)
        on_progress(Progress(sent=sent, ended=len(records), lost=lost, of=len(requests)))

    async def send(body: bytes, request: Request, due_seconds: float) -> None:
        wanted = request.output_tokens if endpoint.honours_ignore_eos else None
        records.append(
            await client.stream(body, wanted_tokens=wanted, due_seconds=due_seconds, max_retries=max_retries)
        )
        tell()

    start_seconds = perf_counter()
    for index, request in enumerate(requests):
        body = endpoint.body(writer.write(index, request), request.output_tokens)
        due_seconds = start_seconds + request.arrival_seconds
        if await _stopped(stop, due_seconds - perf_counter()):
            break
        if concurrency_limit is not None and len(under_way) >= concurrency_limit:
            records.append(_not_sent(due_seconds))
        else:
            task = asyncio.create_task(send(body, request, due_seconds))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        sent += 1
        tell()
    stopped = asyncio.create_task(stop.wait())
    while under_way and not stop.is_set():
        await asyncio.wait({stopped, *under_way}, return_when=asyncio.FIRST_COMPLETED)
    ending = [stopped, *under_way]
    for task_or_wait in ending:
        task_or_wait.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
    return records


async def _stopped(stop: asyncio.Event, wait_seconds: float) -> bool:
    """Waits until it is time for the next request; True when the replay was stopped meanwhile."""
    if wait_seconds > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_seconds)
    return stop.is_set()


def _not_sent(due_seconds: float) -> Record:
    now_seconds = perf_counter()
    return Record(
        outcome=Outcome.FAILED,
        detail="not sent: concurrency limit of the client",
        due_seconds=due_seconds,
        sent_seconds=now_seconds,
        first_token_seconds=None,
        last_token_seconds=None,
        end_seconds=now_seconds,
        output_tokens=0,
    )
