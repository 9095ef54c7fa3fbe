"""Durations read and written as Kubernetes does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api import durations
from fulcrum.api.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "expected_seconds"),
    [
        ("500ms", 0.5),
        ("0s", 0.0),
        ("2s", 2.0),
        ("1.5s", 1.5),
        ("1m30s", 90.0),
        ("24h", 86400.0),
        ("1h0m0.5s", 3600.5),
        ("1m500ms", 60.5),
    ],
)
def test_reads_seconds(text: str, expected_seconds: float) -> None:
    assert durations.seconds(text) == pytest.approx(expected_seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1d", "1us", "1s\n", "1.s", ".5s", "1e3s", "9999999h"])
def test_refuses_and_says_what_to_write(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        durations.seconds(text)
    assert repr(text) in str(caught.value)
    assert "1m30s" in str(caught.value)


def test_refuses_what_is_too_long_for_the_schema() -> None:
    with pytest.raises(InvalidValueError, match="longer than 16 characters"):
        durations.seconds("1s" * 9)


@pytest.mark.parametrize(
    ("duration_seconds", "text"),
    [(0.0421, "42.1ms"), (0, "0ms"), (0.9999, "1s"), (1.5, "1.5s"), (0.0004, "0.4ms"), (75, "75s"), (0.5, "500ms")],
)
def test_writes_three_digits(duration_seconds: float, text: str) -> None:
    assert durations.text_of(duration_seconds) == text


@given(st.floats(min_value=0.001, max_value=99_999))
def test_what_is_written_reads_back(duration_seconds: float) -> None:
    assert durations.seconds(durations.text_of(duration_seconds)) == pytest.approx(duration_seconds, rel=0.01)


@pytest.mark.parametrize("duration_seconds", [-1.0, float("nan"), float("inf"), 1e6])
def test_writes_nothing_that_cannot_be_read(duration_seconds: float) -> None:
    with pytest.raises(InvalidValueError):
        durations.text_of(duration_seconds)
