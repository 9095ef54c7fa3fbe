"""What a stream is charged and judged by: tokens, however the engine packs them into events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import SERVED, Behave, Engine, MakeSite, Seen, eventually

from fulcrum.api.names import Role
from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.dispatch.leg_deadlines import between_pieces_seconds

TOKENS = 1000
STREAM = {"model": "m", "prompt": [1, 2, 3], "max_tokens": TOKENS, "stream": True, "stream_interval": TOKENS}
KEY = "Authorization: Bearer secret-one\r\n"


def packed(*, stays: bool = False, says: bool = True) -> Behave:
    """As vLLM with `stream_interval`: the first token, then the others in one event."""

    async def behave(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "prefill":
            return False
        await engine.head(writer)
        ids = bool(seen.body.get("return_token_ids"))
        for made, finish in ((list(range(1)), None), (list(range(1, TOKENS)), None if stays else "length")):
            choice = {"index": 0, "text": "x" * len(made), "finish_reason": finish}
            await engine.event(writer, json.dumps({"choices": [{**choice, "token_ids": made} if ids else choice]}))
        if stays:
            await asyncio.sleep(60)
        if says and (seen.body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 3, "completion_tokens": TOKENS}
            await engine.event(writer, json.dumps({"choices": [], "usage": usage}, separators=(",", ":")))
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    return behave


def engines(behave: Behave, *, legs: int) -> tuple[Engine, ...]:
    if legs == 1:
        return (Engine("m", Role.MIXED, behave=behave),)
    return Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=behave)


def keyed(folder: Path, tokens_per_minute: int = 1_000_000) -> dict[str, Any]:
    (folder / "one").write_text(json.dumps({"key": "secret-one", "tokensPerMinute": tokens_per_minute}))
    return {"api_keys_directory": str(folder)}


def charged(site: Any) -> Callable[[], int]:
    """Tokens that the key has been charged, without what trickled back since."""
    (key,) = site.gateway.admission.keys.keys
    full = key._allowance._tokens._left
    return lambda: round(full - key._allowance._tokens._left)


@pytest.mark.parametrize("legs", [1, 2])
@pytest.mark.parametrize("followed", [True, False], ids=["can be resumed", "cannot"])
@pytest.mark.parametrize("asked", [True, False], ids=["usage asked for", "not"])
async def test_tokens_are_counted_not_events(
    make_site: MakeSite, tmp_path: Path, legs: int, followed: bool, asked: bool
) -> None:
    site = await make_site(*engines(packed(), legs=legs), config=keyed(tmp_path), slo_seconds=(9.0, 9.0))
    body = {**STREAM, **({} if followed else {"logprobs": 1})}
    if asked:
        body["stream_options"] = {"include_usage": True}
    count = charged(site)
    answer = await site.post(body, headers=KEY)
    assert answer.complete
    assert (b'"usage"' in answer.body) is asked
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert count() == TOKENS + 3
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == TOKENS
    assert await site.metric("fulcrum_gateway_tpot_seconds_sum") < 0.01, "a thousandth of the time between two events"


@pytest.mark.parametrize("followed", [True, False], ids=["can be resumed", "cannot"])
async def test_without_usage_ids_count_and_else_events_for_all_that_they_may_hold(
    make_site: MakeSite, tmp_path: Path, followed: bool
) -> None:
    site = await make_site(*engines(packed(says=False), legs=1), config=keyed(tmp_path))
    count = charged(site)
    assert (await site.post({**STREAM, **({} if followed else {"logprobs": 1})}, headers=KEY)).complete
    assert count() == TOKENS + 3


@pytest.mark.parametrize("followed", [True, False], ids=["can be resumed", "cannot"])
async def test_who_leaves_early_pays_for_what_was_made(make_site: MakeSite, tmp_path: Path, followed: bool) -> None:
    site = await make_site(*engines(packed(stays=True), legs=1), config=keyed(tmp_path))
    count = charged(site)
    client = await site.connect()
    client.post({**STREAM, **({} if followed else {"logprobs": 1})}, headers=KEY)
    await client.read_head()
    await client.read_chunk()
    await client.read_chunk()
    client.close()
    await eventually(lambda: count() == TOKENS + 3)


async def test_who_leaves_before_a_whole_answer_pays_what_was_expected(make_site: MakeSite, tmp_path: Path) -> None:
    async def never(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return True

    engine = Engine("m", Role.MIXED, behave=never)
    site = await make_site(engine, config=keyed(tmp_path))
    count = charged(site)
    client = await site.connect()
    client.post({"model": "m", "prompt": [1, 2, 3], "max_tokens": 50}, headers=KEY)
    await eventually(lambda: bool(engine.seen))
    client.close()
    await eventually(lambda: engine.gone == 1)
    await eventually(lambda: site.gateway.metrics.requests["/v1/completions", 499, "", "default"] == 1)
    assert count() > 3


async def test_long_intervals_are_no_stall(make_site: MakeSite) -> None:
    site = await make_site(*engines(packed(), legs=1))
    request = read_request("/v1/completions", json.dumps({**STREAM, "stream_interval": 1000.0}).encode(), SERVED)
    assert request.stream_interval == 1000
    incoming = site.gateway.admission.incoming(request, 0, {})
    cluster = site.gateway.registry.cluster
    decided = site.gateway.admission.core.decide(incoming, cluster, 0.0)
    flight = cluster.start(incoming, decided.route, 0.0)  # type: ignore[union-attr]
    assert between_pieces_seconds(flight, 1000) >= 1000 * flight.route.tpot_seconds
