"""What kind of attention a model has, as far as it decides which engines start, pair, and may keep FP8 KV."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fulcrum.api.attention import AttentionKind

MLA_TYPES: Final = frozenset(
    ("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
     "kimi_linear", "longcat_flash", "pangu_ultra_moe", "bailing_hybrid")
)  # fmt: skip
"""`model_type` of models with latent attention (vLLM 0.32, `ModelArchConfigConvertorBase.is_deepseek_mla`)."""
PREFIX_TYPES: Final = frozenset(("bagel", "gemma3", "molmo2", "moondream3", "paligemma"))
"""`model_type` of models whose images attend in both directions (vLLM 0.32, `is_mm_prefix_lm` of the same class)."""
_STATE_LAYERS: Final = re.compile(r"mamba|linear_attention|recurrent|conv|ssm", re.IGNORECASE)
_HYBRID_FIELDS: Final = ("mamba_n_heads", "mamba_d_state", "mamba_num_heads", "linear_num_key_heads", "ssm_state_size",
                         "hybrid_override_pattern", "linear_attn_config")  # fmt: skip
"""Fields of a config.json that only models with state layers have."""
_KV_ALGORITHMS: Final = frozenset(("fp8", "nvfp4"))
"""What vLLM 0.32 takes for KV (`MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP`); with another name it keeps the model's type."""
_BLOG: Final = "vLLM's evaluation of FP8 KV caches, April 2026"
_KEYS: Final = "keys of this family are too large for FP8 without scales: vllm #41343, verl #4435"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """One model, as far as it is known; None is unknown."""

    attention: AttentionKind = AttentionKind.DENSE
    hybrid: bool = False
    """Some layers keep a state instead of KV (Mamba, gated delta nets)."""
    kv_heads: int | None = None
    remote_code: bool = False
    """Its architecture is code in its own repository: vLLM needs `--trust-remote-code`."""
    fp8: bool | None = None
    """Whether FP8 KV without calibrated scales is known to answer well."""
    source: str = ""
    """Where that is from."""
    scaled: bool = False
    """The checkpoint brings scales for FP8 KV, and vLLM's `auto` takes them."""


_NAMES: Final = (
    # pattern of the name's last part -> kind; the first that fits
    (r"deepseek-v3\.2|glm-5", ModelKind(attention=AttentionKind.SPARSE_LATENT)),
    (r"deepseek-r1-distill-qwen|qwq-", ModelKind(fp8=False, source=_KEYS)),  # Qwen2.5, trained on
    (
        r"deepseek-(v2|v3|r1(?!-distill|-0528-qwen))|longcat-flash|glm-4\.7-flash",
        ModelKind(attention=AttentionKind.LATENT),
    ),
    (r"kimi-k2", ModelKind(attention=AttentionKind.LATENT, remote_code=True)),
    (r"kimi-linear", ModelKind(attention=AttentionKind.LATENT, hybrid=True, remote_code=True)),
    (r"gpt-oss", ModelKind(attention=AttentionKind.SINKS, kv_heads=8)),
    (r"gemma-3-(4b|12b|27b)", ModelKind(attention=AttentionKind.PREFIX)),
    (r"qwen3-(coder-)?next|qwen3\.[5-9]", ModelKind(hybrid=True)),
    (r"granite-4.*-h-|(nvidia-)?nemotron-(h|nano-.*-v2|3-)|jamba|falcon-h1|bamba|zamba", ModelKind(hybrid=True)),
    (r"qwen2(\.5)?-", ModelKind(fp8=False, source=_KEYS)),
    (r"(meta-)?llama-3(\.[0-9])?-", ModelKind(fp8=True, source=_BLOG)),
    (r"qwen3-[0-9.]+b", ModelKind(fp8=True, source=_BLOG)),
)


def kind_of_name(name: str) -> ModelKind | None:
    """Return what is known of a model by its hub id or path; None where the name says nothing."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((kind for pattern, kind in _NAMES if re.match(pattern, last)), None)


def kind_of_config(document: Mapping[str, Any], name: str = "") -> ModelKind:
    """Return the kind of a model by its config.json; how it does with FP8 KV comes from the `name`, too."""
    found = document.get("text_config")
    text: Mapping[str, Any] = found if isinstance(found, Mapping) else document
    named = kind_of_name(name)
    heads = text.get("num_key_value_heads", text.get("num_attention_heads"))
    layers = [str(each) for each in (*_listed(text, "layer_types"), *_listed(text, "layers_block_type"))]
    bad = str(text.get("model_type") or "").startswith("qwen2")
    return replace(
        named or ModelKind(fp8=False if bad else None, source=_KEYS if bad else ""),
        attention=_attention(document, text),
        hybrid=any(field in text for field in _HYBRID_FIELDS) or any(map(_STATE_LAYERS.search, layers)),
        kv_heads=heads if isinstance(heads, int) else None,
        remote_code=named.remote_code if named is not None else False,
        scaled=_is_scaled(document.get("quantization_config") or text.get("quantization_config")),
    )


def _listed(text: Mapping[str, Any], field: str) -> list[Any]:
    found = text.get(field)
    return list(found) if isinstance(found, list) else []


def _attention(document: Mapping[str, Any], text: Mapping[str, Any]) -> AttentionKind:
    if str(text.get("model_type")) in MLA_TYPES and text.get("kv_lora_rank") is not None:
        return AttentionKind.SPARSE_LATENT if text.get("index_topk") else AttentionKind.LATENT
    if str(document.get("model_type")) in PREFIX_TYPES:
        return AttentionKind.PREFIX
    return AttentionKind.SINKS if text.get("model_type") == "gpt_oss" else AttentionKind.DENSE


def _is_scaled(quantization: Any) -> bool:
    """What vLLM's `get_kv_cache_quant_algo_string` takes for FP8 KV: a scheme of the checkpoint."""
    if not isinstance(quantization, Mapping):
        return False
    inner = quantization.get("quantization")
    places = (quantization, inner) if isinstance(inner, Mapping) else (quantization,)
    found = [place.get(field) for place in places for field in ("kv_cache_scheme", "kv_cache_quant_algo")]
    return any(str(each).lower() in _KV_ALGORITHMS if isinstance(each, str) else bool(each) for each in found)
