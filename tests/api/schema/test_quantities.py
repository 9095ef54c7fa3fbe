"""The canonical form of quantities, as Go's `resource.Quantity` prints them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.schema.quantities import canonical_quantity, parse_quantity


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("1.5", "1500m"), ("1", "1"), ("100", "100"),
        ("1000", "1k"), ("1500", "1500"), ("2000k", "2M"), ("0", "0"), ("0Gi", "0"), ("-1", "-1"), ("+1", "1"),
        ("0.5Gi", "512Mi"), ("1.5Gi", "1536Mi"), ("1024Mi", "1Gi"), ("0.5Ki", "512"), ("1Ki", "1Ki"),
        ("25165824Ki", "24Gi"), ("100m", "100m"), ("0.1n", "1n"), ("1e3", "1e3"), ("12E6", "12e6"), ("1.5e3", "1500"),
    ],
)  # fmt: skip
def test_canonical_forms(written: str, stored: str) -> None:
    assert canonical_quantity(written) == stored


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1gi", "--1", "1e", "Gi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        canonical_quantity(text)


@given(st.integers(-(10**6), 10**6), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3"]))
def test_the_amount_stays_and_the_form_is_stable(number: int, suffix: str) -> None:
    stored = canonical_quantity(f"{number}{suffix}")
    assert parse_quantity(stored) == Decimal(parse_quantity(f"{number}{suffix}"))
    assert canonical_quantity(stored) == stored
