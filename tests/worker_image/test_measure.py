"""What the measurement at start reads, and how long it may take; the real thing is in test_two_engines."""

from __future__ import annotations

import math
import time

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.machine import deadline_seconds

from fulcrum.api.names import HEADER_RANK
from fulcrum_worker import measure, measured_engine
from fulcrum_worker.fit import DecodeSample, PrefillSample
from fulcrum_worker.measure import (
    BUDGET_SECONDS,
    ENOUGH_PROMPTS,
    LEAST_PATIENCE_SECONDS,
    LONGEST_BUDGET_SECONDS,
    PATIENCE_SECONDS,
    _measure,
    budget_for,
    measure_engine,
    patience_for,
)
from fulcrum_worker.measured_engine import TOKENS_TIMED, MeasuredEngine, Totals, compile_ahead, totals_of

PAGE = """\
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{le="+Inf",engine="0"} 3.0
vllm:request_prefill_time_seconds_count{engine="0"} 3.0
vllm:request_prefill_time_seconds_sum{engine="0"} 1.5
"""
STEPS = """\
# TYPE vllm:NAME histogram
vllm:NAME_bucket{le="+Inf",engine="0"} 8.0
vllm:NAME_count{engine="0"} 8.0
vllm:NAME_sum{engine="0"} 0.4
"""


@pytest.mark.parametrize(
    ("start_seconds", "budget_seconds"),
    [(5.0, BUDGET_SECONDS), (22.0, BUDGET_SECONDS), (90.0, 9.0), (900.0, LONGEST_BUDGET_SECONDS)],
)
def test_a_slow_start_is_given_a_longer_measurement(start_seconds: float, budget_seconds: float) -> None:
    assert budget_for(start_seconds) == pytest.approx(budget_seconds)


@pytest.mark.parametrize(
    ("start_seconds", "patience_seconds"),
    [(2.0, LEAST_PATIENCE_SECONDS), (40.0, 30.0), (900.0, PATIENCE_SECONDS)],
)
def test_a_slow_start_is_measured_with_more_patience(start_seconds: float, patience_seconds: float) -> None:
    assert patience_for(start_seconds) == pytest.approx(patience_seconds)
    assert patience_for(start_seconds) > budget_for(start_seconds)


TOKENS = """\
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 35.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_count{engine="0"} 3.0
"""


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_histograms_by_either_name(name: str) -> None:
    assert totals_of(PAGE + STEPS.replace("NAME", name)) == Totals(3.0, 1.5, 8.0, 0.4)


def test_speculative_decoding_gives_more_tokens_than_steps() -> None:
    assert totals_of(PAGE + STEPS.replace("NAME", "inter_token_latency_seconds") + TOKENS) == Totals(
        3.0, 1.5, 32.0, 0.4
    )


def test_an_engine_without_them_is_not_measured() -> None:
    with pytest.raises(LookupError, match="inter_token_latency"):
        totals_of(PAGE)


async def test_what_held_up_a_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine that starts makes a round slower, nothing makes it quicker."""
    times = iter([(0.9, 0.03), (0.1, 0.08), (0.4, 0.05), (0.3, 0.09)])

    async def timed(_engine: object, **_of: object) -> tuple[float, float]:
        return next(times)

    monkeypatch.setattr(MeasuredEngine, "timed", timed)
    async with aiohttp.ClientSession() as session:
        engine = MeasuredEngine(
            session=session, url="http://127.0.0.1", model="m", ranks=1, soft_deadline=0.0, deadline=0.0
        )
        prefills: list[PrefillSample] = []
        decodes: list[DecodeSample] = []
        await _measure(engine, prefills, decodes, batch=1, prompt_tokens=64, whole_seconds=1000.0)
    assert [sample.seconds for sample in prefills] == [0.1]
    assert [sample.seconds for sample in decodes] == [0.03]


async def test_a_slow_engine_is_measured_with_enough_prompts_and_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two short prompts say of a long one is mostly noise."""
    clock = 0.0
    measured: list[tuple[int, int]] = []

    async def timed(_engine: object, *, batch: int, prompt_tokens: int) -> tuple[float, float]:
        nonlocal clock
        clock += 10.0
        measured.append((batch, prompt_tokens))
        return prompt_tokens / 100, 0.5 * batch

    async def nothing(_engine: object, **_of: object) -> None:
        return None

    async def little(_engine: object) -> tuple[float, float]:
        return 2.0, 2048.0

    monkeypatch.setattr(MeasuredEngine, "timed", timed)
    monkeypatch.setattr(MeasuredEngine, "generate", nothing)
    monkeypatch.setattr(MeasuredEngine, "limits", little)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock)
    async with aiohttp.ClientSession() as session:
        speed = await measure_engine(session, "http://127.0.0.1", "m", max_model_len=None, budget_seconds=1.0)
    assert speed is not None
    assert [batch for batch, _ in measured] == [1] * ENOUGH_PROMPTS + [2]
    assert speed.prefill_a + 2048 * speed.prefill_b == pytest.approx(20.48, rel=0.01)


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_log_probabilities_are_asked_for_once_on_each_rank_before_anyone_else_does(status: int) -> None:
    """An engine that refuses them is a worker like any other."""
    asked: list[tuple[str | None, object]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.headers.get(HEADER_RANK), (await request.json())["logprobs"]))
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url("")).rstrip("/")
        await compile_ahead(session, url, "m", ranks=2, timeout_seconds=deadline_seconds(30))
    assert sorted(asked) == [("0", 0), ("1", 0)]


async def test_measuring_begins_when_requests_get_no_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests pay for what an engine sets up late."""
    clock = 0.0
    times = iter([3.0, 1.0, 0.5, 0.45])

    async def generate(_engine: object, **_of: object) -> None:
        nonlocal clock
        clock += next(times)

    monkeypatch.setattr(MeasuredEngine, "generate", generate)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock)
    async with aiohttp.ClientSession() as session:
        engine = MeasuredEngine(
            session=session, url="http://127.0.0.1", model="m", ranks=1, soft_deadline=0.0, deadline=0.0
        )
        await measure._settle(engine)
    assert next(times, None) is None


@pytest.mark.parametrize(
    ("most", "most_tokens", "sizes"),
    [
        (256.0, 2048.0, [8, 32, 128]),
        (1024.0, 8192.0, [8, 32, 128, 512]),
        (4.0, 2048.0, [4]),
        (1.0, 2048.0, []),
        (16.0, 64.0, [4]),
    ],
)
async def test_batches_grow_to_what_one_step_takes_and_each_is_run_before_it_counts(
    monkeypatch: pytest.MonkeyPatch, most: float, most_tokens: float, sizes: list[int]
) -> None:
    ran: list[tuple[str, int, int]] = []

    async def timed(_engine: object, *, batch: int, prompt_tokens: int) -> tuple[float, float]:
        ran.append(("counts", batch, prompt_tokens))
        return 0.001, 0.001

    async def generate(_engine: object, *, batch: int, prompt_tokens: int, output_tokens: int) -> None:
        ran.append(("first", batch, prompt_tokens))

    async def limits(_engine: object) -> tuple[float, float]:
        return most, most_tokens

    monkeypatch.setattr(MeasuredEngine, "timed", timed)
    monkeypatch.setattr(MeasuredEngine, "generate", generate)
    monkeypatch.setattr(MeasuredEngine, "limits", limits)
    async with aiohttp.ClientSession() as session:
        engine = MeasuredEngine(
            session=session, url="http://127.0.0.1", model="m", ranks=1, soft_deadline=math.inf, deadline=math.inf
        )
        await measure._measure_batches(engine, [], [])
    assert [batch for kind, batch, _ in ran if kind == "first"] == sizes
    assert all(batch * tokens <= most_tokens for _, batch, tokens in ran)
    for batch in sizes:
        assert [kind for kind, size, _ in ran if size == batch][:2] == ["first", "counts"]


async def test_each_rank_gets_the_same_work_and_the_speed_is_that_of_one() -> None:
    """Ranks step together: alone on an idle group a rank would look quicker than it is."""
    asked: list[tuple[str, int]] = []

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append((request.headers[HEADER_RANK], len(body["prompt"])))
        return web.Response(text="data: [DONE]\n\n")

    async def metrics(_: web.Request) -> web.Response:
        requests = sum(batch for _, batch in asked)
        tokens = TOKENS_TIMED * requests
        histograms = ((measured_engine._PREFILL_TIME[0], requests, 0.25), (measured_engine._STEP_TIME[0], tokens, 0.01))
        lines = (
            f'{name}_count{{engine="0"}} {count}\n{name}_sum{{engine="0"}} {count * each}\n'
            for name, count, each in histograms
        )
        return web.Response(text="".join(lines))

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete), web.get("/metrics", metrics)])
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        soon = time.monotonic() + deadline_seconds(30)
        url = f"http://{server.host}:{server.port}"
        engine = MeasuredEngine(session=session, url=url, model="m", ranks=2, soft_deadline=soon, deadline=soon)
        assert await engine.timed(batch=3, prompt_tokens=16) == pytest.approx((0.25, 0.01))
    assert sorted(asked) == [("0", 3), ("1", 3)]
