"""The synthetic generator: seeded, Poisson, with the lengths that were asked for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.simulation.traffic import DECODE_HEAVY, PREFILL_HEAVY, Phase, generate, repeated


def test_same_seed_same_trace_and_another_seed_another() -> None:
    phases = (PREFILL_HEAVY, DECODE_HEAVY)
    assert generate(phases, seed=7) == generate(phases, seed=7)
    assert generate(phases, seed=7) != generate(phases, seed=8)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_rate_and_lengths_come_out_as_asked(cv: float) -> None:
    phase = Phase(seconds=1000, requests_per_second=20, prompt_tokens_mean=384, output_tokens_mean=64, qos_class="free")
    requests = generate([phase], seed=1, cv=cv)
    assert len(requests) == pytest.approx(20_000, rel=0.03)
    assert sum(r.prompt_tokens for r in requests) / len(requests) == pytest.approx(384, rel=0.03)
    assert sum(r.output_tokens for r in requests) / len(requests) == pytest.approx(64, rel=0.03)
    assert {r.qos_class for r in requests} == {"free"}
    gaps = [b.arrival_seconds - a.arrival_seconds for a, b in itertools.pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(cv * mean, rel=0.05)


def test_phases_follow_one_another() -> None:
    requests = generate((replace(PREFILL_HEAVY, spread=0), replace(DECODE_HEAVY, spread=0)), seed=3)
    for request in requests:
        phase = PREFILL_HEAVY if request.arrival_seconds < PREFILL_HEAVY.seconds else DECODE_HEAVY
        assert (request.prompt_tokens, request.output_tokens) == (phase.prompt_tokens_mean, phase.output_tokens_mean)


@pytest.mark.parametrize("cv", [0.0, -1.0, float("nan")])
def test_arrivals_without_a_spread_are_refused(cv: float) -> None:
    with pytest.raises(ValueError, match="cv must be above 0"):
        generate([PREFILL_HEAVY], seed=1, cv=cv)


@given(total_seconds=st.floats(min_value=0.1, max_value=500))
def test_repeated_fills_exactly(total_seconds: float) -> None:
    phases = repeated((PREFILL_HEAVY, DECODE_HEAVY), total_seconds=total_seconds)
    assert sum(phase.seconds for phase in phases) == pytest.approx(total_seconds)
    assert all(phase.seconds > 0 for phase in phases)


@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0, 2), rate=st.floats(0.1, 30))
def test_always_sorted_inside_the_phases_and_at_least_one_token(seed: int, spread: float, rate: float) -> None:
    phases = [replace(PREFILL_HEAVY, seconds=5, requests_per_second=rate, spread=spread)] * 2
    arrivals = [request.arrival_seconds for request in generate(phases, seed=seed)]
    assert arrivals == sorted(arrivals)
    assert all(0 <= arrival < 10 for arrival in arrivals)
    assert all(r.prompt_tokens >= 1 and r.output_tokens >= 1 for r in generate(phases, seed=seed))


@pytest.mark.parametrize("field", ["seconds", "requests_per_second", "prompt_tokens_mean", "output_tokens_mean"])
def test_a_phase_of_nothing_is_refused(field: str) -> None:
    nothing: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        replace(PREFILL_HEAVY, **nothing)
