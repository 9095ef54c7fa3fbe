"""What is counted of a request: lengths, latencies, and whether the promise was kept."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually

from fulcrum.api.names import Role
from fulcrum.gateway.api_formats.prompt_estimate import PromptEstimate
from fulcrum.gateway.metrics.slo import SloOutcome, judge_latency, judge_refusal

BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
SLO = (0.5, 0.05)


def pair(**options: Any) -> tuple[Engine, Engine]:
    return Engine("p", Role.PREFILL), Engine("d", Role.DECODE, **options)


@pytest.mark.parametrize(
    ("ttft", "tpot", "slo", "expected"),
    [
        (0.1, 0.01, SLO, SloOutcome.MET),
        (0.5, 0.05, SLO, SloOutcome.MET),
        (0.6, 0.01, SLO, SloOutcome.TTFT),
        (0.1, 0.06, SLO, SloOutcome.TPOT),
        (0.6, 0.06, SLO, SloOutcome.BOTH),
        (0.1, None, SLO, SloOutcome.MET),
        (0.6, None, SLO, SloOutcome.TTFT),
        (None, 0.06, SLO, SloOutcome.TPOT),
        (None, None, SLO, None),
        (0.6, 0.06, (None, 0.05), SloOutcome.TPOT),
        (0.6, 0.06, (0.5, None), SloOutcome.TTFT),
        (0.6, None, (None, 0.05), None),
        (0.6, 0.06, (None, None), None),
    ],
)
def test_latency(
    ttft: float | None, tpot: float | None, slo: tuple[float | None, float | None], expected: SloOutcome | None
) -> None:
    judged = judge_latency(ttft_seconds=ttft, tpot_seconds=tpot, slo_ttft_seconds=slo[0], slo_tpot_seconds=slo[1])
    assert judged is expected


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (503, "NoWorker", SloOutcome.REJECTED),
        (503, "Overloaded", SloOutcome.REJECTED),
        (429, "", SloOutcome.REJECTED),
        (502, "UpstreamFailed", SloOutcome.FAILED),
        (504, "TimedOut", SloOutcome.FAILED),
        (503, "ShuttingDown", SloOutcome.FAILED),
        (500, "", SloOutcome.FAILED),
        (400, "", None),
        (400, "NeverFits", None),
        (429, "TtftUnreachable", SloOutcome.REJECTED),
        (404, "", None),
        (499, "", None),
    ],
)
def test_refusals(code: int, reason: str, expected: SloOutcome | None) -> None:
    assert judge_refusal(code, reason) is expected


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (b"[1, 2, 3]", 3),
        (b"[7]", 1),
        (b"[[1, 2], [3, 4]]", 4),
        (b'"' + b"a" * 398 + b'"', 100),
        (b'"1,2,3"', 2),
        (b'["a, b"]', 2),
        (b"", 1),
    ],
)
def test_a_prompt_is_counted_or_guessed(prompt: bytes, tokens: int) -> None:
    assert PromptEstimate().tokens(prompt) == tokens


@given(st.lists(st.tuples(st.integers(2, 100_000), st.integers(-1, 100_000)), max_size=30), st.integers(0, 10**6))
def test_a_guess_is_always_a_positive_count(seen: list[tuple[int, int]], length: int) -> None:
    estimate = PromptEstimate()
    for prompt_bytes, tokens in seen:
        estimate.learn(b'"' + b"x" * prompt_bytes, tokens)
    assert estimate.tokens(b'"' + b"x" * length) >= 1


def test_the_ratio_is_learned_and_follows_a_change() -> None:
    estimate = PromptEstimate()
    prompt = b'"' + b"x" * 9_999
    for _ in range(100):
        estimate.learn(prompt, 5_000)
    assert estimate.tokens(prompt) == pytest.approx(5_000, rel=0.01)
    for _ in range(300):
        estimate.learn(prompt, 2_000)
    assert estimate.tokens(prompt) == pytest.approx(2_000, rel=0.1)
    estimate.learn(b"[1, 2]", 2)
    assert estimate.tokens(prompt) == pytest.approx(2_000, rel=0.1)


def test_tools_are_a_part_of_the_prompt() -> None:
    estimate = PromptEstimate()
    prompt = b'[{"role":"user","content":"' + b"x" * 380 + b'"}]'
    assert estimate.tokens(prompt, 4_000) == pytest.approx(1_100, rel=0.1)
    for _ in range(50):
        estimate.learn(prompt, 2_000, 4_000)
    assert estimate.tokens(prompt, 4_000) == pytest.approx(2_000, rel=0.02)
    assert estimate.tokens(prompt) == pytest.approx(2_000 * 410 / 4_410, rel=0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_two_legs_are_judged_whether_streamed_or_not(make_site: MakeSite, stream: bool) -> None:
    site = await make_site(*pair(), slo_seconds=(60.0, 60.0))
    await site.post({**BODY, "stream": stream})
    assert await site.metric('fulcrum_gateway_slo_total{outcome="met",class="default",model="m"}') == 1
    assert await site.metric("fulcrum_gateway_slo_total") == 1
    assert await site.metric('fulcrum_gateway_arrivals_total{class="default"}') == 1
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "output_tokens"):
        assert await site.metric(f'fulcrum_gateway_{name}_count{{model="m"}}') == 1, name
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3


async def test_a_slow_stream_misses_its_pace(make_site: MakeSite) -> None:
    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        for _ in range(3):
            await engine.event(writer, '{"choices": [{"text": "a"}]}')
            await asyncio.sleep(0.06)
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(*pair(behave=slow), slo_seconds=(60.0, 0.05))
    await site.post({**BODY, "stream": True})
    assert await site.metric('fulcrum_gateway_slo_total{outcome="tpot"}') == 1


async def test_who_comes_is_load_before_the_answer(make_site: MakeSite) -> None:
    names = ("arrived_prompt_tokens_count", "prompt_tokens_count", "expected_output_tokens_count")
    counted: list[list[float]] = []

    async def look(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        counted.append([await site.metric(f"fulcrum_gateway_{name}") for name in names])
        return False

    site = await make_site(Engine("m", Role.MIXED, behave=look))
    for _ in range(4):
        await site.post(BODY)
    # The fourth is expected to make what three before it made.
    assert counted == [[1, 0, 0], [2, 1, 0], [3, 2, 0], [4, 3, 0]]
    assert await site.metric("fulcrum_gateway_arrived_output_tokens_sum") == 3
    assert await site.metric("fulcrum_gateway_expected_output_tokens_sum") == 3
    estimated = await site.metric("fulcrum_gateway_arrived_prompt_tokens_sum")
    assert await site.metric("fulcrum_gateway_expected_prompt_tokens_sum") == estimated > 0
    assert await site.metric("fulcrum_gateway_arrived_prompt_tokens_squared_sum") == estimated**2 / 4


async def test_an_answer_is_held_against_what_is_known_when_it_ends(make_site: MakeSite) -> None:
    """A long one came before anything was known; that it was taken for unknown then says nothing about the next."""
    begun, others = asyncio.Event(), asyncio.Event()

    async def first_last(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if not begun.is_set():
            begun.set()
            await others.wait()
        return False

    site = await make_site(Engine("m", Role.MIXED, behave=first_last))
    long = asyncio.create_task(site.post(BODY))
    await begun.wait()
    for _ in range(3):
        await site.post(BODY)
    others.set()
    await long
    assert await site.metric("fulcrum_gateway_arrived_output_tokens_count") == 0
    assert await site.metric("fulcrum_gateway_expected_output_tokens_sum") == 3


async def test_a_whole_answer_of_one_leg_is_not_judged(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED), slo_seconds=SLO)
    await site.post(BODY)
    assert await site.metric("fulcrum_gateway_slo_total") == 0
    assert await site.metric("fulcrum_gateway_time_to_first_token_seconds_count") == 0
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 7
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3


@pytest.mark.parametrize(("slo", "rejected"), [(SLO, 1), ((None, None), 0)])
async def test_a_request_that_is_turned_away_is_load(
    make_site: MakeSite, slo: tuple[float | None, float | None], rejected: int
) -> None:
    site = await make_site(slo_seconds=slo)
    assert (await site.post(BODY)).status == 503
    assert (await site.post({**BODY, "model": "other"})).status == 404
    assert await site.metric("fulcrum_gateway_arrivals_total") == 1
    assert await site.metric("fulcrum_gateway_prompt_tokens_count") == 1
    assert await site.metric('fulcrum_gateway_slo_total{outcome="rejected"}') == rejected
    assert await site.metric('fulcrum_gateway_requests_total{reason="NoWorker",code="503"}') == 1


async def test_too_many_connections_are_load_too(make_site: MakeSite) -> None:
    async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return True

    engine = Engine("m", Role.MIXED, behave=hang)
    site = await make_site(engine, slo_seconds=SLO, max_connections=1)
    (await site.connect()).post(BODY)
    await eventually(lambda: bool(engine.seen))
    second = await site.connect()
    assert (await second.answer()).status == 503
    page = await site.page()
    assert 'outcome="rejected"} 1.0' in page


async def test_a_client_that_leaves_is_not_judged(make_site: MakeSite) -> None:
    async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return True

    site = await make_site(*pair(behave=hang), slo_seconds=SLO)
    client = await site.connect()
    client.post(BODY)
    await eventually(lambda: bool(site.engines["d"].seen))
    client.close()
    await eventually(lambda: site.engines["d"].gone == 1)
    assert await site.metric("fulcrum_gateway_slo_total") == 0
    assert await site.metric("fulcrum_gateway_arrivals_total") == 1


async def test_a_worker_that_fails_everywhere_is_our_failure(make_site: MakeSite) -> None:
    async def fail(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 500, {})
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=fail), slo_seconds=SLO)
    assert (await site.post(BODY)).status == 502
    assert await site.metric('fulcrum_gateway_slo_total{outcome="failed"}') == 1


async def test_usage_at_the_end_of_a_stream_is_read(make_site: MakeSite) -> None:
    async def with_usage(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, '{"choices": [{"text": "a b"}]}')
        usage = {"prompt_tokens": 31, "completion_tokens": 2}
        await engine.event(writer, json.dumps({"choices": [], "usage": usage}))
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=with_usage))
    answer = await site.post({**BODY, "stream": True, "stream_options": {"include_usage": True}})
    assert b'"prompt_tokens": 31' in answer.body
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 31
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 2


async def test_without_usage_the_prompt_is_guessed(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    await site.post({**BODY, "prompt": "x" * 398, "stream": True})
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 100
    await site.post({**BODY, "prompt": [5] * 40, "stream": True})
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 140


async def test_every_series_names_its_cluster_and_starts_at_zero(make_site: MakeSite) -> None:
    site = await make_site(*pair(), namespace="ns", pod_name="c-gateway-1")
    page = await site.page()
    ours = [line for line in page.splitlines() if line.startswith("fulcrum_gateway_")]
    assert len(ours) > 100
    for line in ours:
        assert 'fulcrum_cluster="c"' in line
        assert 'fulcrum_namespace="ns"' in line
    assert await site.metric('fulcrum_gateway_info{pod="c-gateway-1",model="m"}') == 1
    for line in ours:
        if line.startswith(("fulcrum_gateway_arrivals_total", "fulcrum_gateway_slo_total")):
            assert line.endswith(" 0.0")
    assert sum(line.startswith("fulcrum_gateway_slo_total") for line in ours) == len(SloOutcome)


async def test_what_fails_after_the_answer_does_not_hold_up_the_next_request(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = await make_site(*pair(), access_log=True)
    client = await site.connect()

    def crash(*_: object) -> None:
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(logging.getLogger("fulcrum.gateway.dispatch.accounting"), "log", crash)
        client.post({**BODY, "stream": True})
        assert (await client.answer()).complete
    client.post({**BODY, "stream": True})
    assert (await client.answer()).complete
    assert "account_crashed" in caplog.text
