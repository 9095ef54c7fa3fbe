"""Estimators: they find what they are shown, and stay inside their bounds whatever that is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.admission.world import make

from fulcrum.admission import Admit, TokenRatio
from fulcrum.admission.classes import ClassTable
from fulcrum.admission.margin import Margin
from fulcrum.admission.outputs import OutputLengths
from fulcrum.api.serving_types import ClassMatch, QosClass
from fulcrum.routing import Flight


def test_bytes_per_token_are_learned_and_relearned() -> None:
    ratio = TokenRatio()
    assert ratio.tokens(4000) == pytest.approx(1000)
    for _ in range(200):
        ratio.learn(3000, 1000)
    assert ratio.bytes_per_token == pytest.approx(3.0, rel=0.01)
    for _ in range(1000):
        ratio.learn(6000, 1000)
    assert ratio.bytes_per_token == pytest.approx(6.0, rel=0.05)
    ratio.learn(0, 0)
    assert ratio.tokens(0) == 1


def test_mean_outputs_follow_the_last_answers() -> None:
    outputs = OutputLengths(2)
    assert outputs.mean(0, 100) == 0
    outputs.learn(0, 100, 10)
    outputs.learn(0, 100, 20)
    assert outputs.mean(0, 100) == 0, "two are few"
    outputs.learn(0, 100, 30)
    assert outputs.mean(0, 100) == 20
    assert outputs.mean(0, 30_000) == 20, "the nearest length that is known"
    assert outputs.mean(1, 100) == 0
    for _ in range(3):
        outputs.learn(0, 20_000, 500)
    assert (outputs.mean(0, 30_000), outputs.mean(0, 100)) == (500, 20)
    for _ in range(200):
        outputs.learn(0, 100, 80)
    assert outputs.mean(0, 100) == pytest.approx(80, rel=0.05)


def under_way(tokens: float, *, now: float = 1000.0) -> dict[Flight, None]:
    """A request of 100 prompt tokens that has made so many tokens of its answer by `now`, one in 11 ms."""
    admission, view = make()
    began = now - tokens * 0.011
    decided = admission.decide(admission.incoming(prompt_tokens=100), view, began)
    assert isinstance(decided, Admit)
    flight = view.start(admission.incoming(prompt_tokens=100), decided.route, began)
    view.prefill_done(flight, began)
    return {flight: None}


def test_before_any_answer_has_ended_it_is_as_long_as_the_longest_under_way() -> None:
    outputs = OutputLengths(1)
    outputs.look(under_way(200), 1000)
    assert outputs.mean(0, 100) == 0, "usual ones are longer"
    assert outputs.expect(0, 100, None) == 256
    outputs.look(under_way(700, now=1010), 1010)
    assert outputs.expect(0, 100, None) == pytest.approx(700, rel=0.1)
    for _ in range(3):
        outputs.learn(0, 100, 50)
    assert outputs.expect(0, 100, None) == 50


def test_output_lengths_by_class_and_prompt_and_never_above_the_cap() -> None:
    outputs = OutputLengths(2)
    for _ in range(300):
        outputs.learn(0, 100, 50)
        outputs.learn(0, 10_000, 800)
    assert outputs.expect(0, 100, None) == pytest.approx(50, rel=0.1)
    assert outputs.expect(0, 10_000, None) == pytest.approx(800, rel=0.1)
    assert outputs.expect(0, 10_000, 30) == 30
    assert outputs.expect(0, 10_000, 0) == 1
    assert outputs.expect(0, 1000, None) in (50, 800), "no request of that length yet: the nearest one"
    assert outputs.expect(1, 100, None) == 256


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 100)), max_size=200))
def test_margins_are_bounded(seen: list[tuple[float, float]]) -> None:
    margin = Margin(0.95)
    for predicted, actual in seen:
        margin.learn(predicted, actual, 1.0)
        margin.rejected()
    assert 1.0 <= margin.factor <= 3.0


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_a_margin_is_the_quantile_of_the_error(level: float) -> None:
    stream = random.Random(7)
    margin = Margin(level)
    inside = 0
    for number in range(8000):
        predicted_seconds = margin.allowed_seconds(1.0)
        actual_seconds = predicted_seconds * 1.2 * stream.lognormvariate(0, 0.1)
        inside += number >= 2000 and actual_seconds <= 1.0
        margin.learn(predicted_seconds, actual_seconds, 1.0)
    assert inside / 6000 == pytest.approx(level, abs=0.03)


def test_margins_follow_the_error_and_let_go_when_no_request_comes_through() -> None:
    margin = Margin(0.95)
    for _ in range(200):
        margin.learn(0.5, 1.01, 1.0)
    assert margin.allowed_seconds(1.0) == pytest.approx(0.5, abs=0.06)
    assert margin.error == pytest.approx(0.505, abs=0.001)
    high = margin.factor
    for _ in range(50):
        margin.rejected()
    assert margin.factor == high
    for _ in range(100):
        margin.rejected()
    assert margin.factor == pytest.approx(1.0, abs=0.02)


def test_small_errors_of_small_latencies_do_not_count() -> None:
    margin = Margin(0.95)
    for _ in range(200):
        margin.learn(0.001, 0.004, 1.0)
    assert margin.factor < 1.1


def test_only_requests_near_the_limit_or_late_tell_about_it() -> None:
    margin = Margin(0.95)
    for _ in range(200):
        margin.learn(0.2, 0.6, 1.0, limit_seconds=0.2)
    assert margin.factor == 1.0
    for _ in range(200):
        margin.learn(0.2, 1.5, 1.0, limit_seconds=0.9)
    assert margin.factor == pytest.approx(1.5 / 0.9, abs=0.1)


TIERS = ClassTable(
    (
        QosClass(name="free", priority=10),
        QosClass(name="premium", priority=100, match=ClassMatch(header="X-Customer-Tier", value="premium")),
        QosClass(name="inside", priority=50, match=ClassMatch(header="x-team", value="eval")),
    )
)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, "free"),
        ({"x-customer-tier": "premium"}, "premium"),
        ({"x-customer-tier": "Premium"}, "free"),
        ({"x-customer-tier": "other"}, "free"),
        ({"x-team": "eval"}, "inside"),
        ({"x-team": "eval", "x-customer-tier": "premium"}, "premium"),
    ],
)
def test_class_of_a_request(headers: dict[str, str], name: str) -> None:
    assert TIERS.names[TIERS.match(headers)] == name


def test_classes_by_name_and_without_any() -> None:
    assert TIERS.index("premium") == 1
    assert TIERS.index("gold") is None
    assert TIERS.headers == {"x-customer-tier", "x-team"}
    assert ClassTable().names == ("default",)
    assert ClassTable().match({"x": "y"}) == 0
