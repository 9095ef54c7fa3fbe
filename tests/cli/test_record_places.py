"""Where `fulcrum record` is told to find gateways."""

from __future__ import annotations

import click
import pytest

from fulcrum.cli.record import _places
from fulcrum.telemetry.rings import _place


@pytest.mark.parametrize(
    ("written", "read_at"),
    [
        ("a=127.0.0.1:9082", "127.0.0.1:9082"),
        ("a=localhost:9082", "localhost:9082"),
        ("a=[::1]:9082", "[::1]:9082"),
        ("a=[fd00::1:2]:1", "[fd00::1:2]:1"),
    ],
)
def test_a_place_is_read_as_it_is_written(written: str, read_at: str) -> None:
    (place,) = _places((written,)).values()
    assert _place(place, 8082) == read_at


@pytest.mark.parametrize(
    ("address", "read_at"),
    [("10.0.0.1", "10.0.0.1:8082"), ("fd00::1", "[fd00::1]:8082"), ("[fd00::1]", "[fd00::1]:8082")],
)
def test_a_pods_address_gets_the_usual_port(address: str, read_at: str) -> None:
    assert _place(address, 8082) == read_at


@pytest.mark.parametrize(
    "written",
    [
        "a",
        "a=",
        "=h:1",
        "a=h",
        "a=h:",
        "a=:1",
        "a=h:0",
        "a=h:65536",
        "a=h:x",
        "a=::1:9082",
        "a=[::1:9082",
        "a=h:\u0663",
    ],
)
def test_what_is_no_place_says_how_to_write_it(written: str) -> None:
    with pytest.raises(click.UsageError, match="write it as POD=HOST:PORT"):
        _places((written,))


@pytest.mark.parametrize("second", ["a=h:2", "b=h:1"])
def test_no_gateway_counts_twice(second: str) -> None:
    with pytest.raises(click.UsageError, match=f"--gateway {second}: give each Pod once"):
        _places(("a=h:1", second))
