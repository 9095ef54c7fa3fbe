"""`fulcrum kv`: the table, the JSON, and what users get wrong."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from fulcrum.cli.app import main

LLAMA_8B = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--accelerator", "H100")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kv", *arguments])


def test_the_table_shows_every_link_and_the_break_even_rate() -> None:
    result = run(*LLAMA_8B)
    assert result.exit_code == 0, result.output
    for shown in ("64 KiB per token", "recomputing them is quicker", "PCIe Gen5 x16", "25 Gb/s network", "FRONT"):
        assert shown in result.output


def test_a_gain_is_largest_at_the_break_even_rate() -> None:
    """Where loading takes as long as recomputing, both at once saves most; far from it next to nothing."""
    even = json.loads(run(*LLAMA_8B, "--json").output)["breakEvenBytesPerSecond"] / 1e9
    rates = [even / 100, even, even * 100]
    shown = json.loads(run(*LLAMA_8B, "--json", *(f"--link={rate}" for rate in rates)).output)["lines"]
    slow, equal, quick = (line["frontGain"] for line in shown)
    assert equal > 0.4
    assert slow < 0.05
    assert quick < 0.05
    for line in shown:
        assert line["frontSeconds"] <= min(line["loadSeconds"], line["recomputeSeconds"]) + 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nonsense", "--accelerator", "H100"), "no dimensions are known"),
        ((*LLAMA_8B, "--prefix", "100000000"), "Use a shorter prefix or more GPUs"),
        (("--model", "meta-llama/Llama-3.3-70B-Instruct", "--accelerator", "H100"), "does not fit"),
        ((*LLAMA_8B, "--link", "0"), "is not in the range"),
    ],
)
def test_what_cannot_be_is_said(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.output
