"""Quantities as Go's `resource.Quantity` reads and prints them, and the amounts of memory in our own objects."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fulcrum.api import quantities
from fulcrum.api.errors import InvalidValueError
from fulcrum.api.quantities import canonical_quantity, is_more, parse_quantity, same_amount

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3), "": 1, "k": 10**3, "M": 10**6,
    "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
    "Ei": 2**60, "e3": 10**3, "E6": 10**6, "e+2": 10**2, "e-3": Fraction(1, 10**3), "E-0": 1,
}  # fmt: skip
"""What Kubernetes knows, and what each stands for."""
GRAMMAR = re.compile(r"[+-]?([0-9]+|[0-9]+\.[0-9]+|[0-9]+\.|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
"""As the documentation of Quantity writes it; Go takes whole exponents only."""


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


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("1.5", "1500m"), ("1", "1"), ("100", "100"),
        ("1000", "1k"), ("1500", "1500"), ("2000k", "2M"), ("0", "0"), ("0Gi", "0"), ("-1", "-1"), ("+1", "1"),
        ("0.5Gi", "512Mi"), ("1.5Gi", "1536Mi"), ("1024Mi", "1Gi"), ("0.5Ki", "512"), ("1Ki", "1Ki"),
        ("25165824Ki", "24Gi"), ("100m", "100m"), ("0.1n", "1n"), ("1e3", "1e3"), ("12E6", "12e6"), ("1.5e3", "1500"),
        ("1.", "1"), (".5", "500m"), ("1.G", "1G"), ("-0.1n", "-1n"), ("-0", "0"), ("1E", "1E"), ("1e0", "1"),
        ("1e-3", "1e-3"), ("1e-30", "1e-9"), ("1e30", "1e30"), ("1000E", "1000E"), ("00012", "12"),
        ("16Ei", "9223372036854775807"), ("-16Ei", "-9223372036854775807"),
    ],
)  # fmt: skip
def test_canonical_forms(written: str, stored: str) -> None:
    assert canonical_quantity(written) == stored


@pytest.mark.parametrize(
    "text",
    [
        "", "abc", "1 Gi", "1gi", "--1", "1e", "Gi", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i",
        "-3.01e-", " 1", "1 ", "1Gi\n", "1K", "1ki", "1e1.5", "+-1", "1Mi1", ".", "+", "0x1", "1_0", "\u0661", "nan",
    ],
)  # fmt: skip
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        canonical_quantity(text)
    assert not same_amount(text, "0")
    assert not is_more("1", text)


@pytest.mark.parametrize("text", ["1e101", "1e-101", "1e999999999999", "9" * 5000])
def test_no_amount_takes_the_memory_to_read_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|digits"):
        parse_quantity(text)


@given(st.integers(-(10**6), 10**6), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3"]))
def test_the_amount_stays_and_the_form_is_stable(number: int, suffix: str) -> None:
    stored = canonical_quantity(f"{number}{suffix}")
    assert parse_quantity(stored) == Decimal(parse_quantity(f"{number}{suffix}"))
    assert canonical_quantity(stored) == stored


@given(
    st.sampled_from(["", "+", "-"]),
    st.from_regex(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", fullmatch=True, alphabet="0123456789."),
    st.sampled_from(sorted(SUFFIXES)),
)
def test_an_amount_is_what_its_suffix_stands_for(sign: str, number: str, suffix: str) -> None:
    nanos = ceil(Fraction(f"0{number}0" if "." in number else number) * SUFFIXES[suffix] * 10**9)
    if "i" in suffix:
        nanos = min(nanos, (2**63 - 1) * 10**9)
    expected = Fraction(-nanos if sign == "-" else nanos, 10**9)
    text = f"{sign}{number}{suffix}"
    assert Fraction(parse_quantity(text)) == Fraction(parse_quantity(canonical_quantity(text))) == expected
    assert same_amount(text, canonical_quantity(text))
    assert is_more(text, "1") == (expected > 1)


@given(st.text(alphabet="0123456789+-.eEinumkKMGTP", max_size=8))
@example("1e")
def test_what_the_grammar_has_is_read_and_nothing_else(text: str) -> None:
    try:
        parse_quantity(text)
    except ValueError as error:
        assert GRAMMAR.fullmatch(text) is None or "unable to parse" in str(error)  # noqa: PT017 - most texts are none
    else:
        assert GRAMMAR.fullmatch(text) is not None
