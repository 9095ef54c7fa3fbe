"""Parameter counts of known models, and config.json documents good and bad."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fulcrum.capacity.config_fields import ModelConfigError
from fulcrum.capacity.hf_config import parse_model_config
from fulcrum.capacity.known_models import KNOWN_MODELS, UnknownModelError, known_model
from fulcrum.capacity.model import MlaConfig
from fulcrum.capacity.precision import Precision

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
MIXTRAL: dict[str, Any] = LLAMA_8B | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN3_235B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 94,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "mlp_only_layers": [],
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
OPT_13B: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2050,
}
BLOOM: dict[str, Any] = {
    "model_type": "bloom",
    "n_embed": 14336,
    "num_attention_heads": 112,
    "n_layer": 70,
    "vocab_size": 250880,
}
QWEN2_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "use_sliding_window": False,
    "sliding_window": 65536,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}
GEMMA_3_27B: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "num_hidden_layers": 62,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
}
SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("name", "billions", "active_billions"),
    [
        # As the model cards say.
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 8.03),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.6, 70.6),
        ("meta-llama/Llama-3.1-405B-Instruct", 405.9, 405.9),
        ("meta-llama/Llama-2-70b-hf", 69.0, 69.0),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62, 7.62),
        ("Qwen/Qwen2.5-72B-Instruct", 72.7, 72.7),
        ("Qwen/Qwen3-32B", 32.8, 32.8),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen/Qwen3-235B-A22B", 235.0, 22.0),
        ("Qwen/Qwen2-57B-A14B-Instruct", 57.4, 14.2),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 12.9),
        ("deepseek-ai/DeepSeek-V2", 236.0, 21.4),
        ("deepseek-ai/DeepSeek-V2-Lite", 15.7, 2.66),
        ("deepseek-ai/DeepSeek-V3", 671.0, 37.5),
        ("moonshotai/Kimi-K2-Instruct", 1026.0, 32.9),
        ("openai/gpt-oss-120b", 116.8, 5.7),
        ("openai/gpt-oss-20b", 20.9, 4.2),
        ("MiniMaxAI/MiniMax-M2.5", 229.0, 11.0),
        ("google/gemma-3-27b-it", 27.0, 27.0),
        ("facebook/opt-13b", 12.85, 12.85),
        ("facebook/opt-66b", 65.7, 65.7),
        ("facebook/opt-175b", 174.6, 174.6),
        ("bigscience/bloom", 176.2, 176.2),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.1345, 0.1345),
    ],
)
def test_parameters_are_those_of_the_model_card(name: str, billions: float, active_billions: float) -> None:
    model = known_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(active_billions, rel=0.02)


def test_parameters_of_plain_models_are_exact() -> None:
    assert known_model("meta-llama/Llama-3.1-8B-Instruct").parameters == 8_030_261_248
    assert known_model("HuggingFaceTB/SmolLM2-135M-Instruct").parameters == 134_515_008


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (LLAMA_8B, "meta-llama/Llama-3.1-8B-Instruct"),
        (DEEPSEEK_V3, "deepseek-ai/DeepSeek-V3"),
        (MIXTRAL, "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        (QWEN3_235B, "Qwen/Qwen3-235B-A22B"),
        (QWEN2_MOE, "Qwen/Qwen2-57B-A14B-Instruct"),
        (OPT_13B, "facebook/opt-13b"),
        (BLOOM, "bigscience/bloom"),
        (GPT_OSS, "openai/gpt-oss-120b"),
        (GEMMA_3_27B, "google/gemma-3-27b-it"),
        (SMOLLM2, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ],
)
def test_a_config_json_gives_what_the_table_has(document: dict[str, Any], name: str) -> None:
    parsed, known = parse_model_config(document, name=name), KNOWN_MODELS[name]
    if known.mla is not None:  # the plain head size says nothing there
        assert parsed.mla == MlaConfig(
            q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        )
    assert parsed == known


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, "head_dim"),
        ({"vocab_size": None}, "vocab_size"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 99}, "first_k_dense_replace"),
        ({"quantization_config": {"quant_method": "new"}}, "quantization_config.quant_method"),
    ],
)
def test_a_bad_config_json_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_model_config(LLAMA_8B | change)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert caught.value.fix


def test_a_config_json_that_is_no_object() -> None:
    with pytest.raises(ModelConfigError, match="must be a JSON object"):
        parse_model_config([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, Precision.BF16),
        ({"quant_method": "fp8"}, Precision.FP8),
        ({"quant_method": "mxfp4"}, Precision.FP4),
        ({"quant_method": "awq", "bits": 4}, Precision.INT4),
        ({"quant_method": "gptq", "bits": 8}, Precision.FP8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Precision.FP8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Precision.FP4),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
            Precision.INT4,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            Precision.FP8,
        ),
        ({"quant_method": "custom", "bits": 8}, Precision.FP8),
    ],
)
def test_weight_format(quantization: dict[str, Any] | None, expected: Precision) -> None:
    assert parse_model_config(LLAMA_8B | {"quantization_config": quantization}).weights is expected


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B"),
        ("meta-llama/Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b-hf"),
        ("llama2-70b", "meta-llama/Llama-2-70b-hf"),
        ("bloom-176b", "bigscience/bloom"),
        ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "meta-llama/Llama-3.3-70B-Instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "meta-llama/Llama-3.1-8B-Instruct"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1"),
    ],
)
def test_names_as_people_write_them(written: str, name: str) -> None:
    found, of = known_model(written), KNOWN_MODELS[name]
    assert found == replace(of, name=written, weights=found.weights, scale_block=found.scale_block)


def test_an_unknown_model_says_what_to_give() -> None:
    with pytest.raises(UnknownModelError, match=r"config\.json.*Close: .*Qwen3-32B"):
        known_model("Qwen/Qwen3-33B")


def test_weight_bytes_by_format() -> None:
    model = known_model("meta-llama/Llama-3.1-8B-Instruct")
    assert model.weight_bytes() == 2 * model.parameters
    tables = model.parameters - model.dense_parameters
    assert model.weight_bytes(Precision.FP8) == model.dense_parameters + 2 * tables
    # 116.8 billion parameters in MXFP4 are published as 65 GB.
    assert known_model("openai/gpt-oss-120b").weight_bytes() / 1e9 == pytest.approx(65, rel=0.02)
