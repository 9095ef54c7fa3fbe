"""The roofline of the workers that a pool's spec describes."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import vllm_source

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.engine import EngineShapeError
from fulcrum.capacity.model_facts import facts_of_name
from fulcrum.capacity.pool_roofline import known_roofline, pool_roofline, step_limit
from fulcrum.capacity.speed import WorkerSpeed

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def roofline(
    *args: str, of_pool: tuple[str, ...] = (), model: str = LLAMA, accelerator: str = "H100", tensor: int = 1
) -> WorkerSpeed | None:
    document: dict[str, Any] = {
        "model": {"name": model},
        "pools": [{"name": "p", "accelerator": accelerator, "parallelism": {"tensor": tensor}, "workers": {"max": 1}}],
        "engine": {"args": list(args)},
    }
    if of_pool:
        document["pools"][0]["engine"] = {"args": list(of_pool)}
    spec = msgspec.convert(document, InferenceClusterSpec)
    return known_roofline(spec, spec.pools[0], facts_of_name(model))


def test_a_known_pair_and_its_other_names() -> None:
    speed = roofline(model="meta-llama/Llama-3.1-70B-Instruct", accelerator="H100-SXM-80GB", tensor=4)
    assert speed is not None
    assert speed == roofline(model="Llama-3.1-70B", accelerator="H100", tensor=4)


@pytest.mark.parametrize(
    ("model", "accelerator", "tensor"),
    [
        ("somebody/own-model", "H100", 1),
        (LLAMA, "TPU", 1),
        (LLAMA, "H100", 3),
        ("meta-llama/Llama-3.1-405B-Instruct", "L4", 1),
        ("smollm2", "cpu", 1),
    ],
)
def test_no_roofline_where_none_can_be_had(model: str, accelerator: str, tensor: int) -> None:
    assert roofline(model=model, accelerator=accelerator, tensor=tensor) is None


def test_limits_of_the_engine_arguments_are_those_of_the_speed() -> None:
    usual = roofline()
    limited = roofline(
        *("--max-num-seqs", "64", "--max_num_batched_tokens=4k", "--gpu-memory-utilization=0.5"),
        of_pool=("--max-num-seqs=32",),
    )
    assert usual is not None
    assert limited is not None
    assert (usual.max_batch, usual.max_batched_tokens) == (1024, 8192)
    assert (limited.max_batch, limited.max_batched_tokens) == (32, 4000)
    assert limited.kv_capacity_tokens < usual.kv_capacity_tokens / 2


@pytest.mark.parametrize("written", ["0", "1.5", "much", "nan", ""])
def test_a_memory_share_that_the_engine_refuses_has_no_roofline(written: str) -> None:
    assert roofline(f"--gpu-memory-utilization={written}") is None


@pytest.mark.parametrize("written", ["--max-num-seqs=999999999999999", "--max-num-batched-tokens=999999999999999T"])
def test_limits_that_no_gpu_has_room_for_have_no_roofline(written: str) -> None:
    assert roofline(written) is None


def test_the_reason_is_told() -> None:
    document = {"model": {"name": LLAMA}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}}]}
    spec = msgspec.convert(document, InferenceClusterSpec)
    with pytest.raises(EngineShapeError, match="only a measurement"):
        pool_roofline(spec, spec.pools[0], facts_of_name(LLAMA))


def _vllm_reads() -> Callable[[str], int]:
    found = vllm_source.definition("utils/argparse_utils.py", "human_readable_int")
    assert isinstance(found, ast.FunctionDef)
    scope: dict[str, Any] = {"re": re, "argparse": argparse}
    exec(compile(ast.Module([found], []), "human_readable_int", "exec"), scope)
    return scope["human_readable_int"]  # type: ignore[no-any-return]


@pytest.mark.vllm_facts
@given(
    st.from_regex(r"[0-9]{1,6}([.][0-9]{1,3})?[kKmMgGtT]?", fullmatch=True) | st.sampled_from(["", "-1", "auto", "8 k"])
)
def test_numbers_are_read_as_vllm_reads_them(written: str) -> None:
    try:
        wanted = _vllm_reads()(written)
    except (ValueError, argparse.ArgumentTypeError):
        wanted = 0
    assert step_limit(written) == max(wanted, 0)
