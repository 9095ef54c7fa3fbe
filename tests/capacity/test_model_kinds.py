"""What models are, by name and by config.json, held against what vLLM takes them for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.vllm_source import code, strings

from fulcrum.api.attention import AttentionKind
from fulcrum.capacity.model_kinds import MLA_TYPES, PREFIX_TYPES, kind_of_config, kind_of_name

ARCHITECTURE = "transformers_utils/model_arch_config_convertor.py"
V3: dict[str, Any] = {"model_type": "deepseek_v3", "num_attention_heads": 128, "kv_lora_rank": 512}


@pytest.mark.parametrize(
    ("name", "attention", "hybrid", "fp8"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", AttentionKind.DENSE, False, True),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", AttentionKind.DENSE, False, True),
        ("Qwen/Qwen3-32B", AttentionKind.DENSE, False, True),
        ("Qwen/Qwen3-235B-A22B", AttentionKind.DENSE, False, True),
        ("Qwen/Qwen2.5-7B-Instruct", AttentionKind.DENSE, False, False),
        ("/models/Qwen2-72B/", AttentionKind.DENSE, False, False),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", AttentionKind.DENSE, True, None),
        ("deepseek-ai/DeepSeek-V3", AttentionKind.LATENT, False, None),
        ("deepseek-ai/DeepSeek-R1-0528", AttentionKind.LATENT, False, None),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", AttentionKind.DENSE, False, False),
        ("/models/deepseek-r1-distill-qwen-7b", AttentionKind.DENSE, False, False),
        ("Qwen/QwQ-32B", AttentionKind.DENSE, False, False),
        ("deepseek-ai/DeepSeek-V3.2", AttentionKind.SPARSE_LATENT, False, None),
        ("moonshotai/Kimi-K2-Instruct", AttentionKind.LATENT, False, None),
        ("openai/gpt-oss-120b", AttentionKind.SINKS, False, None),
        ("google/gemma-3-27b-it", AttentionKind.PREFIX, False, None),
        ("ibm-granite/granite-4.0-h-small", AttentionKind.DENSE, True, None),
        ("nvidia/Nemotron-H-47B-Base-8K", AttentionKind.DENSE, True, None),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", AttentionKind.DENSE, True, None),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", AttentionKind.DENSE, True, None),
    ],
)
def test_kinds_by_name(name: str, attention: AttentionKind, hybrid: bool, fp8: bool | None) -> None:
    kind = kind_of_name(name)
    assert kind is not None
    assert (kind.attention, kind.hybrid, kind.fp8) == (attention, hybrid, fp8)
    assert (kind.fp8 is None) == (not kind.source), "a verdict has a source"


@pytest.mark.parametrize(
    "name",
    [
        "m", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-3-1b-it", "llama3",
        # Llama and Qwen3 that DeepSeek-R1 taught: not its architecture.
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    ],
)  # fmt: skip
def test_a_name_that_says_nothing(name: str) -> None:
    assert kind_of_name(name) is None


@pytest.mark.parametrize(
    ("document", "attention", "hybrid"),
    [
        (V3, AttentionKind.LATENT, False),
        ({**V3, "model_type": "deepseek_v32", "index_topk": 2048}, AttentionKind.SPARSE_LATENT, False),
        ({"model_type": "gpt_oss"}, AttentionKind.SINKS, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, AttentionKind.PREFIX, False),
        ({"model_type": "gemma3_text"}, AttentionKind.DENSE, False),
        ({"model_type": "qwen3_next", "linear_num_key_heads": 16}, AttentionKind.DENSE, True),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}, AttentionKind.DENSE, True),
        ({"model_type": "llama", "layer_types": ["full_attention"]}, AttentionKind.DENSE, False),
        ({"text_config": {**V3, "model_type": "kimi_k2"}}, AttentionKind.LATENT, False),
    ],
)
def test_kinds_by_config(document: dict[str, Any], attention: AttentionKind, hybrid: bool) -> None:
    kind = kind_of_config(document)
    assert (kind.attention, kind.hybrid) == (attention, hybrid)


def test_heads_scales_and_verdicts_by_config() -> None:
    assert kind_of_config({"num_attention_heads": 64, "num_key_value_heads": 8}).kv_heads == 8
    assert kind_of_config(V3).kv_heads == 128
    assert kind_of_config({"model_type": "qwen2"}).fp8 is False
    assert kind_of_config({"model_type": "llama"}, "meta-llama/Llama-3.1-8B").fp8 is True
    assert kind_of_config({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}).scaled
    assert kind_of_config({"quantization_config": {"quantization": {"kv_cache_quant_algo": "FP8"}}}).scaled
    assert not kind_of_config({"quantization_config": {"quant_method": "fp8"}}).scaled
    assert not kind_of_config({"quantization_config": {"kv_cache_quant_algo": "INT8"}}).scaled


@pytest.mark.vllm_facts
def test_model_types_are_those_of_vllm() -> None:
    """`ModelArchConfigConvertorBase`: which `model_type` has latent attention, and which a multimodal prefix."""
    assert strings(ARCHITECTURE, "ModelArchConfigConvertorBase", "is_deepseek_mla") >= MLA_TYPES
    known = strings(ARCHITECTURE, "ModelArchConfigConvertorBase", "is_mm_prefix_lm")
    assert {each for each in known if each.isidentifier()} - {"is_mm_prefix_lm", "model_type"} == PREFIX_TYPES


@pytest.mark.vllm_facts
def test_auto_takes_the_scheme_of_the_checkpoint() -> None:
    """`resolve_kv_cache_dtype_string`: with `auto`, the scheme in quantization_config decides."""
    assert "get_kv_cache_quant_algo_string(quant_cfg)" in code("utils/torch_utils.py", "resolve_kv_cache_dtype_string")
    known = strings("utils/torch_utils.py", "get_kv_cache_quant_algo_string")
    assert {"kv_cache_scheme", "kv_cache_quant_algo", "quantization"} <= known
    taken = "MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP = {'fp8': 'fp8_e4m3', 'nvfp4': 'nvfp4'}"
    assert taken in code("utils/torch_utils.py")
