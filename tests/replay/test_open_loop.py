"""Open loop: arrivals do not wait for answers."""

from __future__ import annotations

import asyncio
from typing import Any

from fulcrum.replay import Client, Endpoint, Outcome, Progress, replay
from fulcrum.simulation.traffic import Request

ENDPOINT = Endpoint(model="small", tokens_per_word=2, honours_ignore_eos=True)


def every(gap_seconds: float, count: int, output_tokens: int = 4) -> list[Request]:
    return [
        Request(arrival_seconds=number * gap_seconds, prompt_tokens=20, output_tokens=output_tokens)
        for number in range(count)
    ]


async def test_arrivals_do_not_wait_for_answers(server: Any) -> None:
    server.token_seconds = 0.2
    states: list[Progress] = []
    async with Client(server.url) as client:
        records = await replay(client, ENDPOINT, every(0.02, 10), on_progress=states.append)
    assert [record.outcome for record in records] == [Outcome.OK] * 10
    assert server.most_at_once == 10
    assert states[-1] == Progress(sent=10, ended=10, lost=0, of=10)
    assert {len(body["prompt"].split()) for body in server.bodies} == {10}
    assert all(body["temperature"] == 0 and body["ignore_eos"] for body in server.bodies)


async def test_the_concurrency_limit_does_not_close_the_loop(server: Any) -> None:
    server.token_seconds = 0.2
    async with Client(server.url) as client:
        records = await replay(client, ENDPOINT, every(0.0, 5), concurrency_limit=2)
    assert sum(record.outcome is Outcome.OK for record in records) == 2
    assert sum("concurrency limit" in record.detail for record in records) == 3


async def test_stop_keeps_what_has_ended(server: Any) -> None:
    stop = asyncio.Event()
    async with Client(server.url) as client:
        server.fault = "hang"
        requests = [
            *every(0.0, 2),
            *every(0.0, 3, output_tokens=1),
            Request(arrival_seconds=3600, prompt_tokens=1, output_tokens=1),
        ]

        def stop_after_three(now: Progress) -> None:
            if now.ended == 3:
                stop.set()

        records = await replay(client, ENDPOINT, requests, stop=stop, on_progress=stop_after_three)
    assert [record.outcome for record in records] == [Outcome.OK] * 3
