"""Models of the table against their published configurations, as transformers has them, and by their names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.separate_process import answered

from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.hf_config import parse_model_config
from fulcrum.capacity.known_models import KNOWN_MODELS, known_model
from fulcrum.capacity.kv import kv_bytes_per_token
from fulcrum.capacity.precision import Precision, named_precision

DEFAULTS = {
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3_next.configuration_qwen3_next:Qwen3NextConfig",
    "Qwen/Qwen3.5-35B-A3B": "qwen3_5_moe.configuration_qwen3_5_moe:Qwen3_5MoeTextConfig",
    "zai-org/GLM-4.5-Air": "glm4_moe.configuration_glm4_moe:Glm4MoeConfig",
    "zai-org/GLM-5": "glm_moe_dsa.configuration_glm_moe_dsa:GlmMoeDsaConfig",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama4.configuration_llama4:Llama4TextConfig",
    "deepseek-ai/DeepSeek-V3.2": "deepseek_v32.configuration_deepseek_v32:DeepseekV32Config",
}
"""Classes whose defaults are the configuration of a released model."""

_ASK = """
import importlib, json, sys

found = {}
for name, place in json.load(sys.stdin).items():
    module, _, kind = place.partition(":")
    config = getattr(importlib.import_module(f"transformers.models.{module}"), kind)()
    found[name] = json.loads(config.to_json_string(use_diff=False))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """Return configurations by model. Asked in a process of its own: transformers is large."""
    return answered(_ASK, DEFAULTS, package="transformers")


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_the_table_has_what_was_published(published: dict[str, Any], name: str) -> None:
    known = known_model(name)
    fields = {field: value for field, value in published[name].items() if value is not None}
    read = parse_model_config({"head_dim": known.head_dim, **fields}, name=known.name)
    # Formats are not in these classes, nor is the width of layers without experts where a model has none.
    same = dataclasses.replace(
        read, weights=known.weights, scale_block=known.scale_block, intermediate=known.intermediate
    )
    if known.mla is not None:  # says all about its heads
        same = dataclasses.replace(same, head_dim=known.head_dim)
    assert same == dataclasses.replace(known, tied_embeddings=read.tied_embeddings)


@pytest.mark.parametrize(
    ("name", "billions", "active_billions"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.7, 3.9),
        ("Qwen/Qwen3.5-397B-A17B", 397, 17.3),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480, 35.4),
        ("zai-org/GLM-4.5", 353, 33.6),
        ("zai-org/GLM-4.5-Air", 107, 13.4),
        ("zai-org/GLM-5", 744, 41),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 107.8, 17.2),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 400.7, 17.2),
        ("google/gemma-3-4b-it", 3.88, 3.88),
    ],
)
def test_parameters_of_newer_models(name: str, billions: float, active_billions: float) -> None:
    model = known_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(active_billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "of", "weights"),
    [
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B-Instruct", Precision.FP8),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "meta-llama/Llama-3.3-70B-Instruct", Precision.FP8),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "meta-llama/Llama-3.1-8B-Instruct", Precision.INT4),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", Precision.INT4),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-ai/DeepSeek-R1", Precision.FP4),
        ("unsloth/DeepSeek-R1-BF16", "deepseek-ai/DeepSeek-R1", Precision.BF16),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3", Precision.FP8),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-V3", Precision.FP8),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B", Precision.BF16),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B", Precision.FP8),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistralai/Mistral-Small-24B-Instruct-2501", Precision.BF16),
        ("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.5", Precision.FP8),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "meta-llama/Llama-3.3-70B-Instruct", Precision.INT4),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "meta-llama/Llama-3.3-70B-Instruct", Precision.FP8),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B-Instruct", Precision.FP8),
        ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2-Thinking", Precision.INT4),
    ],
)
def test_releases_that_share_dimensions(name: str, of: str, weights: Precision) -> None:
    found = known_model(name)
    block = found.scale_block
    assert found == dataclasses.replace(KNOWN_MODELS[of], name=name, weights=weights, scale_block=block)


def test_kimi_k2_thinking_is_published_in_four_bits() -> None:
    """594 GB: its groups of 32 weights have more scales than those of 128 that are counted."""
    assert known_model("moonshotai/Kimi-K2-Thinking").weight_bytes() / 1e9 == pytest.approx(594, rel=0.06)


def test_a_name_without_a_format_says_none() -> None:
    assert named_precision("meta-llama/Llama-3.1-70B-Instruct") is None
    assert named_precision("org-fp8/model") is None


def test_half_the_weights_take_half_the_memory() -> None:
    whole, half = (known_model(f"nvidia/Llama-3.1-70B-Instruct{suffix}") for suffix in ("", "-FP8"))
    assert half.weight_bytes() == pytest.approx(whole.weight_bytes() / 2, rel=0.04)


def test_windows_and_states_have_one_size_for_each_request() -> None:
    gemma, mixture = known_model("google/gemma-3-27b-it"), known_model("openai/gpt-oss-120b")
    for model, far in ((gemma, 10 / 62), (mixture, 18 / 36)):
        every = dataclasses.replace(model, windowed_layers=0)
        whole = kv_bytes_per_token(every, Precision.BF16)
        assert kv_bytes_per_token(model, Precision.BF16, context_tokens=1e9) == pytest.approx(whole * far, rel=1e-3)
        assert kv_bytes_per_token(model, Precision.BF16, context_tokens=100) == whole
    hybrid = known_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert hybrid.state is not None
    assert hybrid.attention_layers == 12
    assert kv_bytes_per_token(hybrid, Precision.BF16, context_tokens=1e12) == pytest.approx(2 * 12 * 2 * 256 * 2)
    # 36 layers of 32 heads of 128 x 128 numbers in FP32, and the last three inputs of the convolution.
    assert hybrid.state_bytes == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


def test_a_hybrid_of_mamba_and_attention() -> None:
    """Granite 4 Tiny: 40 layers of which four attend."""
    kinds = ["mamba"] * 40
    for layer in (5, 15, 25, 35):
        kinds[layer] = "attention"
    model = parse_model_config(
        {
            "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12,
            "num_key_value_heads": 4, "intermediate_size": 512, "shared_intermediate_size": 1024,
            "num_local_experts": 64, "num_experts_per_tok": 6, "vocab_size": 100352, "tie_word_embeddings": True,
            "layer_types": kinds, "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
            "mamba_d_conv": 4, "mamba_expand": 2,
        }
    )  # fmt: skip
    assert model.attention_layers == 4
    assert model.parameters / 1e9 == pytest.approx(6.94, rel=0.02)  # "7B-A1B"
    assert kv_bytes_per_token(model, Precision.BF16, context_tokens=1e12) == pytest.approx(2 * 4 * 4 * 128 * 2)


def test_scales_that_tensor_parallelism_would_cut_are_refused() -> None:
    def shape(tensor: int, weights: Precision = Precision.FP8) -> EngineShape:
        model = known_model("Qwen/Qwen3-235B-A22B-FP8")
        return EngineShape(model=model, accelerator=accelerator("H100"), tensor=tensor, weights=weights)

    shape(4).require_startable()
    shape(8, Precision.BF16).require_startable()
    with pytest.raises(EngineShapeError, match=r"192 of 1536.*tensor parallelism 1 or 2 or 4, or expert parallelism"):
        shape(8).require_startable()


@pytest.mark.parametrize(
    ("quantization", "weights", "block"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Precision.FP8, 128),
        ({"quant_method": "awq", "bits": 4}, Precision.INT4, 0),
        ({"quant_method": "mxfp4"}, Precision.FP4, 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Precision.FP4, 0),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Precision.FP8, 0),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
            Precision.INT4,
            0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            Precision.FP4,
            0,
        ),
    ],
)
def test_formats_of_a_config(quantization: dict[str, Any], weights: Precision, block: int) -> None:
    model = parse_model_config(
        {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4,
            "num_hidden_layers": 2, "vocab_size": 100, "quantization_config": quantization,
        }
    )  # fmt: skip
    assert (model.weights, model.scale_block) == (weights, block)
