"""Amounts of memory read as Kubernetes does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api import quantities
from fulcrum.api.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("0", 0),
        ("64Gi", 64 * 2**30),
        ("1Ki", 1024),
        ("512Mi", 512 * 2**20),
        ("2Ti", 2 * 2**40),
        ("1k", 1000),
        ("1.5G", 1_500_000_000),
        ("0.5Gi", 2**29),
        ("0.1", 1),
        ("1M", 10**6),
        ("3T", 3 * 10**12),
    ],
)
def test_reads_bytes(text: str, expected_bytes: int) -> None:
    assert quantities.number_of_bytes(text) == expected_bytes


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1Gi", "1 Gi", "1GiB", "1GB", "1K", "1m", "1e3", "1.Gi", "1Gi\n", "9" * 33]
)
def test_refuses_and_says_what_to_write(text: str) -> None:
    with pytest.raises(InvalidValueError, match="64Gi") as caught:
        quantities.number_of_bytes(text)
    assert caught.value.value == text


@given(st.integers(min_value=0, max_value=10**12), st.sampled_from(["", "Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    per_unit = quantities.number_of_bytes(f"1{unit}")
    assert quantities.number_of_bytes(f"{number}{unit}") == number * per_unit
