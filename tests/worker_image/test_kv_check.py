"""`fulcrum kv-check` against real engines: FP8 KV, other weights, and a checkpoint that brings scales.

vLLM's CPU kernels read FP8 KV only on a CPU with AVX-512 or AMX (`cpu_attn._get_attn_isa`; the AVX2 build of its
attention kernel has no such case, either). On others the engine rounds keys and values to FP8 before it stores them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.machine import deadline_seconds
from tests.vllm_source import code
from tests.worker_image.agents import (
    SERVED_NAME,
    START_SECONDS,
    Agent,
    prepared_model,
    start_agent,
    worker_config,
)

from fulcrum.api.worker import EXIT_ENGINE_NOT_STARTED, KvCacheConfig
from fulcrum.capacity.cpu import CPUINFO, refuses_fp8_kv
from fulcrum.cli.app import main
from fulcrum.cli.kv_check import DRIFTED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

REFUSED = refuses_fp8_kv(CPUINFO.read_text(errors="replace"))
REFUSAL = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
SCALES = {0: (0.5, 0.25), 1: (0.125, 2.0)}
"""Of keys and values, by layer."""


ROUNDED = "vllm.v1.attention.backends.cpu_attn=tests.worker_image.fp8_rounding"
PRINTED = "vllm.v1.worker.cpu_model_runner=tests.worker_image.kv_scales"
"""Changes of an engine, see `engine_changes`."""


@contextlib.contextmanager
def engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, *, dtype: str = "auto", change: str = ""
) -> Iterator[Agent]:
    """A worker. On a CPU that would refuse `fp8` it computes and caches in float32."""
    here = Path(__file__).resolve()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(here.with_name("engine_changes")), str(here.parents[2]))))
    if REFUSED and dtype == "fp8":
        dtype, change = "auto", ROUNDED
    monkeypatch.setenv("FULCRUM_TEST_CHANGE", change)
    config = worker_config(
        model=model,
        engine_args=("--dtype", "float32") if REFUSED else (),
        kv_cache=KvCacheConfig(dtype=dtype, block_size=32, memory_bytes=256 << 20),
        measure_at_start=False,
    )
    agent = start_agent(folder, config)
    try:
        yield agent
    finally:
        agent.kill()


def check(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and what it says as JSON; nothing where it only saves."""
    timeout = f"{deadline_seconds(120):.0f}s"
    done = CliRunner().invoke(
        main, ["kv-check", SERVED_NAME, *arguments, "--tokens", "32", "--timeout", timeout, "--json"]
    )
    assert done.exit_code in (0, DRIFTED), done.output
    print(done.stdout)
    return done.exit_code, json.loads(done.stdout or "{}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the answers of the tiny model, whose KV has the type that it computes in."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch, engine(folder, patch, prepared_model()) as agent:
        agent.wait_ready()
        code, found = check("--reference", agent.engine_url, "--candidate", agent.engine_url)
        assert code == 0
        assert found["driftNats"] == 0, "the same engine twice, one request at a time"
        assert (found["equalTokens"], found["firstDifference"]) == (found["answerTokens"], None)
        check("--reference", agent.engine_url, "--save", str(folder / "answers.json"))
    return str(folder / "answers.json")


def test_fp8_changes_what_random_weights_say(recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tmp_path, monkeypatch, prepared_model(), dtype="fp8") as agent:
        agent.wait_ready()
        code, found = check("--reference", recorded, "--candidate", agent.engine_url, "--limit", "0.01")
    assert code == DRIFTED, "the same engine twice has no drift at all"
    assert found["equalTokens"] < found["answerTokens"]
    assert found["firstDifference"] is not None


@pytest.mark.compare
def test_fp8_changes_the_demo_model_less_than_other_weights(
    recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model has other weights and the same tokens."""
    own, model = str(tmp_path / "answers.json"), prepared_model("smollm2")
    with engine(tmp_path, monkeypatch, model) as agent:
        agent.wait_ready()
        code, other = check("--reference", recorded, "--candidate", agent.engine_url)
        assert code == DRIFTED
        assert other["equalTokens"] < 0.1 * other["answerTokens"]
        check("--reference", agent.engine_url, "--save", own)
    with engine(tmp_path, monkeypatch, model, dtype="fp8") as agent:
        agent.wait_ready()
        _, found = check("--reference", own, "--candidate", agent.engine_url)
    assert 0 < found["driftNats"] < other["driftNats"] / 4
    assert found["equalTokens"] > other["equalTokens"]


def scaled(tiny: Path, folder: Path) -> str:
    """Write the tiny model with scales for FP8 KV, as llm-compressor does. Its weights stay what they are."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "config_groups": {},
        "format": "dense",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "strategy": "tensor", "symmetric": True, "type": "float"},
        "quant_method": "compressed-tensors",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_file(folder / "model.safetensors")
    for layer, scales in SCALES.items():
        for name, scale in zip(("k_scale", "v_scale"), scales, strict=True):
            weights[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor([scale])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def test_scales_of_a_checkpoint_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's `auto` takes FP8 for such a checkpoint. A CPU that has no kernels for it ends the start after loading."""
    model = scaled(Path(prepared_model()), tmp_path / "scaled")
    with engine(tmp_path, monkeypatch, model, change=PRINTED) as agent:
        if REFUSED:
            assert agent.wait_exit(seconds=START_SECONDS) == EXIT_ENGINE_NOT_STARTED, agent.tail()
        else:
            agent.wait_ready()
            assert agent.complete("north, south", max_tokens=4)["usage"]["completion_tokens"] == 4
        log = agent.log.read_text(errors="replace")
    said = re.findall(r"kv_scales model\.layers\.(\d)\.self_attn\.attn (\w+) ([\d.]+) ([\d.]+)", log)
    assert {int(layer): (float(key), float(value)) for layer, _, key, value in said} == SCALES, agent.tail()
    assert {dtype for _, dtype, _, _ in said} <= {"fp8", "fp8_e4m3"}
    assert (REFUSAL in log) == REFUSED


@pytest.mark.vllm_facts
def test_where_vllm_refuses_fp8_kv_on_a_cpu() -> None:
    said = code("v1/attention/backends/cpu_attn.py", "_get_attn_isa")
    assert "if fp8_kv and (not supports_amx) and (not supports_avx512):" in said
    assert REFUSAL in said
