"""What the measurement at start reads, and how long it may take; the real thing is in test_two_engines."""

from __future__ import annotations

import aiohttp
import pytest

from fulcrum_worker import measure
from fulcrum_worker.fit import DecodeSample, PrefillSample
from fulcrum_worker.measure import (
    BUDGET_SECONDS,
    ENOUGH_PROMPTS,
    LEAST_PATIENCE_SECONDS,
    LONGEST_BUDGET_SECONDS,
    PATIENCE_SECONDS,
    _Engine,
    _histograms,
    _measure,
    budget_for,
    measure_engine,
    patience_for,
)

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


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_histograms_by_either_name(name: str) -> None:
    assert _histograms(PAGE + STEPS.replace("NAME", name)) == ((3.0, 1.5), (8.0, 0.4))


def test_an_engine_without_them_is_not_measured() -> None:
    with pytest.raises(LookupError, match="inter_token_latency"):
        _histograms(PAGE)


async def test_what_held_up_a_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine that starts makes a round slower, nothing makes it quicker."""
    times = iter([(0.9, 0.03), (0.1, 0.08), (0.4, 0.05), (0.3, 0.09)])

    async def timed(_engine: object, **_of: object) -> tuple[float, float]:
        return next(times)

    monkeypatch.setattr(_Engine, "timed", timed)
    async with aiohttp.ClientSession() as session:
        engine = _Engine(session=session, url="http://127.0.0.1", model="m", soft_deadline=0.0, deadline=0.0)
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

    async def two(_engine: object) -> float:
        return 2.0

    monkeypatch.setattr(_Engine, "timed", timed)
    monkeypatch.setattr(_Engine, "generate", nothing)
    monkeypatch.setattr(_Engine, "max_batch", two)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock)
    async with aiohttp.ClientSession() as session:
        speed = await measure_engine(session, "http://127.0.0.1", "m", max_model_len=None, budget_seconds=1.0)
    assert speed is not None
    assert [batch for batch, _ in measured] == [1] * ENOUGH_PROMPTS + [2]
    assert speed.prefill_a + 2048 * speed.prefill_b == pytest.approx(20.48, rel=0.01)


async def test_measuring_begins_when_requests_get_no_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests pay for what an engine sets up late."""
    clock = 0.0
    times = iter([3.0, 1.0, 0.5, 0.45])

    async def generate(_engine: object, **_of: object) -> None:
        nonlocal clock
        clock += next(times)

    monkeypatch.setattr(_Engine, "generate", generate)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock)
    async with aiohttp.ClientSession() as session:
        engine = _Engine(session=session, url="http://127.0.0.1", model="m", soft_deadline=0.0, deadline=0.0)
        await measure._settle(engine)
    assert next(times, None) is None
