"""What mixed workers let in: between requests let in by chance and all, and nearly what is simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.decode_curve import scaled
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.roofline import worker_speed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing import mixed_admitted, mixed_attainment

SPEED = worker_speed(known_model("meta-llama/Llama-3.1-70B-Instruct"), accelerator("H100-SXM-80GB"), tensor=4)
TTFT_SECONDS, TPOT_SECONDS = 2.0, 0.05


def admitted(demand: Demand, workers: int = 4) -> float:
    return mixed_admitted(demand, [(SPEED, workers)], ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS)


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(0.1, 60.0),
    isl=st.floats(50.0, 8000.0),
    osl=st.floats(1.0, 1500.0),
    dispersion=st.sampled_from([1.0, 4.0]),
)
def test_it_is_a_share_that_falls_with_the_load_and_rises_with_workers(
    *, rate: float, isl: float, osl: float, dispersion: float
) -> None:
    demand = Demand(rate=rate, isl_tokens=isl, osl_tokens=osl, dispersion=dispersion)
    share = admitted(demand)
    assert 0.0 <= share <= 1.0
    assert admitted(replace(demand, rate=2 * rate)) <= share + 0.02
    assert admitted(demand, workers=8) >= share - 0.02


def test_answers_of_one_token_need_no_place_in_a_batch() -> None:
    """The prefill makes the first token: no TPOT is promised for it."""
    assert admitted(Demand(rate=2.0, isl_tokens=1000.0, osl_tokens=1.0, isl_cv2=0.1, osl_cv2=0.0)) > 0.99


def test_answers_of_one_token_keep_any_pace() -> None:
    demand = Demand(rate=2.0, isl_tokens=1000.0, osl_tokens=1.0, isl_cv2=0.1, osl_cv2=0.0)
    found = mixed_attainment(demand, [(SPEED, 4)], ttft_seconds=TTFT_SECONDS, tpot_seconds=SPEED.idle_step_seconds)
    assert found.tpot > 0.99


def test_a_prompt_that_waits_for_memory_is_not_lost() -> None:
    """A KV cache of five prompts: one that comes while it is full has seconds to wait."""
    demand = Demand(rate=9.0, isl_tokens=3731.0, osl_tokens=100.0, isl_cv2=0.0, osl_cv2=0.0)
    stations = [(replace(SPEED, kv_capacity_tokens=5 * 3831), 6)]
    times = {"ttft_seconds": 4.0, "tpot_seconds": 0.15}
    lost = mixed_attainment(demand, stations, **times).joint
    assert lost < 0.9
    assert mixed_attainment(demand, stations, **times, wait_seconds=1.7).joint > lost + 0.5 * (1 - lost)
    assert mixed_admitted(demand, stations, **times, wait_seconds=1.7) > mixed_admitted(demand, stations, **times)


def test_each_kind_of_worker_keeps_its_own_pace() -> None:
    """Steps that are too long on most workers are not made good by short ones on another kind."""
    slow = replace(SPEED, coefficients=scaled(SPEED.coefficients, factor=1.0, offset_seconds=2 * TPOT_SECONDS))
    demand = Demand(rate=4.0, isl_tokens=1000.0, osl_tokens=100.0)
    times = {"ttft_seconds": TTFT_SECONDS, "tpot_seconds": TPOT_SECONDS}
    both = mixed_attainment(demand, [(SPEED, 4), (slow, 4)], **times)
    assert both.ttft > 0.95
    assert 0.4 < both.tpot < 0.6
    assert both.joint == pytest.approx(both.tpot, abs=0.05)


def test_in_overload_as_many_are_let_in_as_keep_the_promise() -> None:
    many = Demand(rate=100.0, isl_tokens=1000.0, osl_tokens=300.0)
    share = admitted(many)
    assert 0.0 < share < 0.5
    fewer = replace(many, rate=many.rate * share)
    assert admitted(fewer) > 0.75
    by_chance = mixed_attainment(many, [(SPEED, 4)], ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS).joint
    assert by_chance < share


def test_nothing_is_let_in_where_no_step_is_short_enough() -> None:
    impossible = SPEED.decode_step_seconds(1, 1) / 2
    demand = Demand(rate=1.0, isl_tokens=1000.0, osl_tokens=300.0)
    assert mixed_admitted(demand, [(SPEED, 4)], ttft_seconds=TTFT_SECONDS, tpot_seconds=impossible) == pytest.approx(
        0.0
    )
