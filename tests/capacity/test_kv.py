"""Size of the KV cache against published figures, and the cost of moving it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.capacity.accelerators import COLLATED_TOKENS, accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import (
    BLOCK_TOKENS,
    Link,
    kv_bytes_per_token,
    kv_capacity_tokens,
    transfer_cost,
)
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
LLAMA_8B = known_model("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = known_model("meta-llama/Llama-3.1-70B-Instruct")
H100 = accelerator("H100")
A100 = accelerator("A100")


@pytest.mark.parametrize(
    ("name", "kv", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", Precision.BF16, 128 * 1024),
        ("meta-llama/Llama-3.1-8B-Instruct", Precision.FP8, 64 * 1024),
        ("meta-llama/Llama-3.1-70B-Instruct", Precision.BF16, 320 * 1024),
        ("meta-llama/Llama-2-7b-hf", Precision.BF16, 512 * 1024),
        ("facebook/opt-13b", Precision.BF16, 800 * 1024),
        ("Qwen/Qwen3-32B", Precision.BF16, 256 * 1024),
        # MLA: 61 layers of 512 + 64 numbers; the DeepSeek-V3 report's 70 KB per token.
        ("deepseek-ai/DeepSeek-V3", Precision.BF16, 70_272),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", Precision.FP8, 11_520),
    ],
)
def test_bytes_per_token(name: str, kv: Precision, expected: int) -> None:
    assert kv_bytes_per_token(known_model(name), kv) == expected


@given(
    layers=st.integers(1, 200),
    kv_heads=st.integers(1, 64),
    groups=st.integers(1, 16),
    head_dim=st.integers(1, 512),
    tokens=st.integers(1, 10**6),
    kv=st.sampled_from([Precision.BF16, Precision.FP8]),
)
def test_bytes_follow_the_published_formula(
    *, layers: int, kv_heads: int, groups: int, head_dim: int, tokens: int, kv: Precision
) -> None:
    """AI Systems Performance Engineering, ch. 18: 2 * L * N * (H_kv * D_h) * bytes."""
    model = ModelConfig(
        name="any",
        layers=layers,
        hidden=64,
        heads=kv_heads * groups,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=64,
        vocab=64,
    )
    assert kv_bytes_per_token(model, kv) * tokens == 2 * layers * tokens * (kv_heads * head_dim) * kv.bytes


def test_fp8_keys_and_values_double_the_room() -> None:
    bf16 = EngineShape(model=LLAMA_8B, accelerator=H100, kv=Precision.BF16)
    fp8 = EngineShape(model=LLAMA_8B, accelerator=H100, kv=Precision.FP8)
    assert kv_capacity_tokens(fp8) == pytest.approx(2 * kv_capacity_tokens(bf16), abs=2 * BLOCK_TOKENS)


def test_a_size_set_by_hand_is_all_that_counts() -> None:
    shape = EngineShape(model=known_model("smollm2"), accelerator=accelerator("cpu"))
    assert kv_capacity_tokens(shape, kv_memory_bytes=2**30) == 2**30 // (11_520 * 16) * 16


def test_tensor_parallelism_beyond_the_heads_replicates() -> None:
    def room(tensor: int) -> int:
        return kv_capacity_tokens(
            EngineShape(model=LLAMA_8B, accelerator=H100, tensor=tensor), kv_memory_bytes=10 * 2**30
        )

    assert room(8) == pytest.approx(8 * room(1), abs=8 * BLOCK_TOKENS)
    assert room(16) == room(8)


def test_the_latent_of_mla_is_on_every_rank() -> None:
    model = known_model("deepseek-ai/DeepSeek-V3")
    one = EngineShape(model=model, accelerator=H100, tensor=1, weights=Precision.FP8)
    eight = EngineShape(model=model, accelerator=H100, tensor=8, weights=Precision.FP8)
    assert kv_capacity_tokens(one, kv_memory_bytes=2**30) == kv_capacity_tokens(eight, kv_memory_bytes=2**30)


def test_weights_that_do_not_fit_say_so() -> None:
    with pytest.raises(EngineShapeError, match=r"does not fit on 1 x H100-SXM-80GB.*Use more GPUs"):
        kv_capacity_tokens(EngineShape(model=LLAMA_70B, accelerator=H100))
    assert kv_capacity_tokens(EngineShape(model=LLAMA_70B, accelerator=H100, tensor=4)) > 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tensor": 3}, "does not divide the 32 attention heads"),
        ({"tensor": 0}, "at least 1"),
        ({"pipeline": 33}, "has 32"),
        ({"kv": Precision.FP4}, "bf16 or fp8"),
        ({"memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"max_batch": -1}, "max_num_seqs"),
    ],
)
def test_shapes_that_cannot_be(change: dict[str, int], what: str) -> None:
    with pytest.raises(EngineShapeError, match=what):
        EngineShape(model=LLAMA_8B, accelerator=H100, **change)  # type: ignore[arg-type]


def test_room_is_near_what_distserve_measured() -> None:
    """OPT-13B and 66B on A100-80G, where 1,024 tokens a step and 95 % of the memory are its settings' equivalent."""
    path = REFERENCE / "distserve_kv_tokens.csv"
    if not path.is_file():
        pytest.skip("no reference data")
    checked = 0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            model, tensor, pipeline = known_model(row["model"]), int(row["tp"]), int(row["pp"])
            if model.heads % tensor or "175b" in row["model"] or int(row["max_num_tokens"]) < 20_000:
                continue
            shape = EngineShape(
                model=model,
                accelerator=A100,
                tensor=tensor,
                pipeline=pipeline,
                kv=Precision.BF16,
                max_batched_tokens=1024,
                memory_utilization=0.95,
            )
            assert kv_capacity_tokens(shape) == pytest.approx(int(row["max_num_tokens"]), rel=0.15), row
            checked += 1
    assert checked > 30


def test_collated_pages_cost_what_the_book_says() -> None:
    """7,500 tokens: 20 ms in pages of 16, 8 ms in pages of 128. The difference is the descriptors alone."""
    shape = EngineShape(model=LLAMA_8B, accelerator=H100)
    plain = transfer_cost(shape, block_tokens=BLOCK_TOKENS).seconds(7500)
    collated = transfer_cost(shape, block_tokens=COLLATED_TOKENS).seconds(7500)
    assert plain - collated == pytest.approx(0.012)


def test_faster_links_move_faster() -> None:
    shape = EngineShape(model=LLAMA_70B, accelerator=H100, tensor=4)
    nvlink, pcie, network, tcp = (
        transfer_cost(shape, link).seconds(8192) for link in (Link.NVLINK, Link.PCIE, Link.NETWORK, Link.TCP)
    )
    assert nvlink < pcie < network < tcp
    # 8,192 tokens of 160 KiB over four network links of 50 GB/s at 70 %: 10 ms, and 15 ms for 512 blocks.
    assert 0.020 < network < 0.030
    # Over TCP the same at 0.5 GB/s for each of the four GPUs.
    assert tcp == pytest.approx(8192 * 160 * 1024 / (4 * 0.5e9) + 0.002 + 0.015, rel=0.01)


def test_a_link_that_is_not_there() -> None:
    with pytest.raises(EngineShapeError, match="has no nvlink"):
        transfer_cost(EngineShape(model=LLAMA_8B, accelerator=accelerator("L40S")), Link.NVLINK)
