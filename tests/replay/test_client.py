"""The client's verdict on what an endpoint does, over real connections."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from fulcrum.replay import Client, Endpoint, EndpointError, Outcome, discover

BODY = Endpoint(model="small", tokens_per_word=1, honours_ignore_eos=True).body("a b c", 3)


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("", Outcome.OK, ""),
        ("status 500", Outcome.FAILED, "HTTP 500"),
        ("status 400", Outcome.FAILED, "HTTP 400"),
        # Without Retry-After there is no hint when to come back.
        ("status 503", Outcome.FAILED, "HTTP 503"),
        ("error in the stream", Outcome.FAILED, "error in the stream"),
        ("reset before the answer", Outcome.LOST, "connection ended"),
        ("reset in the stream", Outcome.LOST, "connection ended"),
        ("a token too few", Outcome.LOST, "2 tokens instead of 3"),
        ("no finish reason", Outcome.LOST, "no finish reason"),
        ("no done", Outcome.LOST, "without [DONE]"),
        ("garbage", Outcome.LOST, "bad event"),
        ("hang", Outcome.LOST, "no end after 1.0 s"),
    ],
)
async def test_verdict(server: Any, fault: str, outcome: Outcome, detail: str) -> None:
    server.fault = fault
    async with Client(server.url, timeout_seconds=1.0 if fault == "hang" else 60.0) as client:
        record = await client.stream(BODY, wanted_tokens=3)
    assert (record.outcome, detail in record.detail) == (outcome, True), record
    if not fault:
        assert record.text == "w0 w1 w2 "
        assert record.output_tokens == 3


async def test_nobody_listens_is_a_clean_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with Client(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            record = await client.stream(BODY)
    assert record.outcome is Outcome.FAILED
    assert "cannot connect" in record.detail


async def test_rejected_is_retried_only_when_asked_to(server: Any) -> None:
    async with Client(server.url) as client:
        server.rejections_left = 1
        record = await client.stream(BODY)
        assert (record.outcome, record.retries, record.detail) == (Outcome.REJECTED, 0, "HTTP 429: Overloaded")
        assert record.retry_after_seconds == 0
        server.rejections_left = 2
        record = await client.stream(BODY, max_retries=2)
        assert (record.outcome, record.retries) == (Outcome.OK, 2)
        server.rejections_left = 2
        record = await client.stream(BODY, max_retries=1)
        assert (record.outcome, record.retries) == (Outcome.REJECTED, 1)


@pytest.mark.parametrize("takes_ignore_eos", [True, False])
async def test_discover_calibrates(server: Any, takes_ignore_eos: bool) -> None:
    server.takes_ignore_eos = takes_ignore_eos
    async with Client(server.url) as client:
        endpoint = await discover(client)
    assert endpoint == Endpoint(model="small", tokens_per_word=2, honours_ignore_eos=takes_ignore_eos)
    assert (b"ignore_eos" in endpoint.body("a", 1)) is takes_ignore_eos


async def test_discover_asks_again_when_it_is_turned_away(server: Any) -> None:
    server.rejections_left = 3
    async with Client(server.url) as client:
        assert (await discover(client)).tokens_per_word == 2
        server.rejections_left = 1000
        with pytest.raises(EndpointError, match=r"/v1/completions: HTTP 429: Overloaded"):
            await discover(client)


async def test_discover_says_what_the_endpoint_answered(server: Any) -> None:
    async with Client(server.url + "/elsewhere") as client:
        with pytest.raises(EndpointError, match=r"/elsewhere/v1/models: HTTP 404"):
            await discover(client)


async def test_times_are_in_order_and_tpot_is_per_token_after_the_first(server: Any) -> None:
    server.token_seconds = 0.03
    near = []
    async with Client(server.url) as client:
        while not any(near) and len(near) < 10:  # what other processes do moves times, but not each time
            record = await client.stream(BODY, wanted_tokens=3)
            assert record.ttft_seconds is not None
            assert record.tpot_seconds is not None
            assert record.due_seconds <= record.sent_seconds < record.end_seconds
            near.append(0.03 <= record.ttft_seconds < 0.5 and 0.02 <= record.tpot_seconds < 0.25)
    assert near[-1], record
