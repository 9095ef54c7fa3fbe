"""`fulcrum capacity`: the table, the JSON, and what users get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fulcrum.cli.app import main

CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["capacity", *arguments])


def test_the_table_shows_everything() -> None:
    result = run("--model", "meta-llama/Llama-3.1-8B-Instruct", "--accelerator", "H100-SXM-80GB", "--kv-dtype", "bf16")
    assert result.exit_code == 0, result.output
    for shown in (
        "8.03 B", "15.0 GiB", "128.0 KiB", "KV tokens that fit", "PREFILL TOKENS", "DECODE BATCH", "KV TRANSFER",
        "nvlink", "network", "Within TPOT 50.0 ms", "bound by",
    ):  # fmt: skip
        assert shown in result.output


def test_json_has_the_same_numbers_and_units() -> None:
    result = run("--model", "Qwen/Qwen3-32B", "--accelerator", "L40S", "--tp", "4", "--dtype", "fp8", "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert (shown["accelerator"], shown["tensor"], shown["weights"]) == ("L40S-48GB", 4, "fp8")
    assert shown["kvBytesPerToken"] == 128 * 1024
    lines = {"prefillA", "prefillB", "prefillC", "decodeA", "decodeB", "decodeC"}
    assert set(shown["coefficients"]) == lines | {"decodeCurve"}
    assert shown["prefill"][0]["tokens"] == 128
    assert 0 < shown["prefill"][0]["seconds"] < 1


def test_an_unknown_model_by_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    by_option = run("--model", "own", "--config", str(tmp_path / "config.json"), "--accelerator", "L4", "--json")
    by_folder = run("--model", str(tmp_path), "--accelerator", "L4", "--json")
    assert json.loads(by_option.output)["parameters"] == json.loads(by_folder.output)["parameters"] == 134_515_008


def test_a_cpu_says_that_it_is_measured() -> None:
    result = run("--model", "smollm2", "--accelerator", "cpu")
    assert result.exit_code == 0
    assert "orders of magnitude" in result.output
    assert f"{2**30 // (23_040 * 16) * 16:,}" in result.output, "auto: the type that the model computes in"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "own", "--accelerator", "H100"), "config.json"),
        (("--model", "llama-3.1-8b", "--accelerator", "TPU"), "known are A100-SXM-80GB"),
        (("--model", "llama-3.1-8b", "--accelerator", "H100", "--tp", "3"), "does not divide"),
        (("--model", "llama-3.1-405b", "--accelerator", "L4"), "Use more GPUs"),
        (("--model", "llama-3.1-8b", "--accelerator", "H100", "--tpot", "50"), "is not a duration"),
        (("--model", "llama-3.1-8b", "--accelerator", "H100", "--kv-memory", "lots"), "64Gi"),
        (("--model", "x", "--config", "/nonexistent/config.json", "--accelerator", "H100"), "cannot read"),
        (("--model", "x", "--config", __file__, "--accelerator", "H100"), "is not JSON"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_bad_config_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"hidden_size": None}))
    result = run("--model", "own", "--config", str(path), "--accelerator", "H100")
    assert result.exit_code == 1
    assert "hidden_size: is missing" in result.output


def test_help_has_examples_and_the_command_is_listed() -> None:
    assert "Examples:" in run("--help").output
    assert "capacity" in CliRunner().invoke(main, ["--help"]).output


def test_ranks_that_share_experts() -> None:
    usual = ("--model", "deepseek-ai/DeepSeek-R1", "--accelerator", "H200", "--dp", "16")
    result = run(*usual, "--expert-backend", "deepep_low_latency")
    assert result.exit_code == 0, result.output
    for shown in ("16 x H200-SXM-141GB (tp 1, pp 1, dp 16, ep)", "one of the 16 ranks"):
        assert shown in result.output
    even, uneven = (json.loads(run(*usual, "--imbalance", each, "--json").output) for each in ("1", "1.5"))
    assert (even["data"], even["experts"], even["gpus"]) == (16, True, 16)
    assert uneven["prefill"][-1]["seconds"] > even["prefill"][-1]["seconds"]


def test_a_dense_model_has_no_ranks() -> None:
    result = run("--model", "meta-llama/Llama-3.1-8B-Instruct", "--accelerator", "H100", "--dp", "2")
    assert result.exit_code == 1
    assert "is dense" in result.output
