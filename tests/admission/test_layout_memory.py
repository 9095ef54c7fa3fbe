"""What was learnt under an earlier layout holds as far as the same workers do the same work."""

from __future__ import annotations

import pytest

from fulcrum.admission.layout_memory import LayoutMemory
from fulcrum.admission.margin import Margin


def names(*numbers: int) -> frozenset[str]:
    return frozenset(f"w{number}" for number in numbers)


def test_as_much_is_kept_as_there_are_workers_that_stayed() -> None:
    memory = LayoutMemory()
    assert memory.kept(names(1), 0.0) == 1.0
    assert memory.kept(names(1), 1.0) == 1.0
    assert memory.kept(names(1, 2), 2.0) == 0.5
    assert memory.kept(names(1, 3), 3.0) == pytest.approx(1 / 3)
    assert memory.kept(names(4), 4.0) == 0.0
    assert memory.kept(names(), 5.0) == memory.kept(names(5), 6.0) == 0.0


def test_a_request_teaches_as_much_as_its_workers_have_to_do_with_those_of_now() -> None:
    memory = LayoutMemory()
    memory.kept(names(1, 2), 0.0)
    assert memory.kept_since(0.0) == 1.0
    memory.kept(names(1, 2, 3, 4), 10.0)
    memory.kept(names(1), 20.0)
    assert [memory.kept_since(began) for began in (5.0, 15.0, 25.0)] == pytest.approx([1 / 8, 1 / 4, 1.0])


def test_what_is_remembered_of_changes_is_bounded() -> None:
    memory = LayoutMemory()
    for number in range(1_000):
        memory.kept(names(number, number + 1), float(number))
    assert len(memory._changes) <= 64
    assert memory.kept_since(0.0) == pytest.approx((1 / 3) ** 64)


def test_a_margin_keeps_that_share_of_its_logarithm() -> None:
    margin = Margin(0.95)
    for _ in range(40):
        margin.learn(1.0, 10.0, 2.0)
    learnt = margin.factor
    assert learnt > 2
    margin.keep(0.5)
    assert margin.factor == pytest.approx(learnt**0.5)
    margin.keep(0.0)
    assert margin.factor == 1.0
    margin.learn(1.0, 10.0, 2.0, weight=0.0)
    assert margin.factor == 1.0
