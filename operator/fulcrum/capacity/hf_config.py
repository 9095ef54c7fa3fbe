"""From a Hugging Face `config.json` to a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fulcrum.capacity.config_fields import Fields, ModelConfigError
from fulcrum.capacity.model import MlaConfig, ModelConfig, MoeConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.state_config import state_config

_TWO_MATRIX_MLP: Final = frozenset({"opt", "bloom", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "mpt", "phi"})
_TIED_UNLESS_SAID: Final = frozenset({"opt", "bloom", "gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "mpt"})
_FOUR_BIT_FLOATS: Final = frozenset({"mxfp4", "nvfp4", "modelopt_fp4"})
_FOUR_BIT: Final = _FOUR_BIT_FLOATS | {"awq", "gptq", "bitsandbytes"}
_EIGHT_BIT: Final = frozenset({"fp8", "fbgemm_fp8", "modelopt", "compressed-tensors"})


def parse_model_config(document: Mapping[str, Any], *, name: str | None = None) -> ModelConfig:
    """Model dimensions from the parsed `config.json`; the text part of multimodal ones.

    Knows Llama, Mistral, Mixtral, Qwen 2/2.5/3 and their MoE kinds, Qwen3-Next, Granite 4, GLM 4.5, DeepSeek V2/V3,
    Kimi K2, gpt-oss, Gemma 2/3, SmolLM, Phi, MiniMax M2, OPT and BLOOM; others with the same field names are read the
    same way.

    Raises:
        ModelConfigError: a field is missing or impossible.
    """
    if not isinstance(document, Mapping):
        raise ModelConfigError("(the document)", "must be a JSON object, as in the model's folder")
    text = document.get("text_config")
    fields = Fields(text if isinstance(text, Mapping) else document)
    kind = str(fields.get("model_type") or "")
    hidden = fields.integer("hidden_size", "n_embd", "n_embed", "d_model")
    heads = fields.integer("num_attention_heads", "n_head", "num_heads")
    layers = fields.integer("num_hidden_layers", "n_layer", "num_layers")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelConfigError("num_key_value_heads", f"is {kv_heads}, must divide num_attention_heads ({heads})")
    head_dim = fields.integer("head_dim", optional=True)
    mla = _mla(fields)
    if head_dim is None:
        if mla is None and hidden % heads:
            raise ModelConfigError("head_dim", f"is missing and hidden_size {hidden} is no multiple of {heads} heads")
        head_dim = hidden // heads
    intermediate = fields.integer("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    moe = _moe(fields, layers, intermediate)
    window, windowed = _window(fields, kind, layers)
    state = state_config(fields, layers, hidden)
    if windowed + (state.layers if state is not None else 0) > layers:
        raise ModelConfigError("layer_types", f"names more layers than num_hidden_layers ({layers})")
    tied = fields.get("tie_word_embeddings")
    if tied is None:
        tied = document.get("tie_word_embeddings")
    return ModelConfig(
        name=name or str(document.get("_name_or_path") or document.get("model_type") or "model"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.integer("intermediate_size_mlp", default=intermediate),  # Llama 4's layers without experts
        vocab=fields.integer("vocab_size"),
        tied_embeddings=bool(tied) if tied is not None else kind in _TIED_UNLESS_SAID,
        gated_mlp=kind not in _TWO_MATRIX_MLP,
        learned_positions=fields.integer("max_position_embeddings", default=0) if kind == "opt" else 0,
        mla=mla,
        moe=moe,
        window_tokens=window,
        windowed_layers=windowed,
        state=state,
        gated_attention=bool(fields.get("attn_output_gate", kind.startswith(("qwen3_next", "qwen3_5")))),
        scale_block=_scale_block(document),
        weights=_weights(document),
    )


def _mla(fields: Fields) -> MlaConfig | None:
    if fields.get("kv_lora_rank") is None:
        return None
    return MlaConfig(
        q_lora_rank=fields.integer("q_lora_rank", optional=True),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def _moe(fields: Fields, layers: int, intermediate: int) -> MoeConfig | None:
    experts = fields.integer("num_experts", "num_local_experts", "n_routed_experts", default=0)
    if experts <= 1:
        return None
    active = fields.integer("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
    if active > experts:
        raise ModelConfigError("num_experts_per_tok", f"is {active}, must be at most the {experts} experts")
    width = fields.integer("moe_intermediate_size", default=intermediate)
    shared = fields.integer("shared_expert_intermediate_size", "shared_intermediate_size", default=0)
    if shared == 0:
        shared = fields.integer("n_shared_experts", default=0) * width
    if shared == 0 and str(fields.get("model_type")).startswith("llama4"):
        shared = width
    dense = fields.integer("first_k_dense_replace", default=0)
    dense = max(dense, layers - layers // fields.integer("interleave_moe_layer_step", default=1))
    listed = fields.get("mlp_only_layers")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        dense = max(dense, len(listed))
    if dense > layers:
        raise ModelConfigError("first_k_dense_replace", f"is {dense}, must be at most the {layers} layers")
    return MoeConfig(
        experts=experts,
        active_experts=active,
        expert_intermediate=width,
        shared_intermediate=shared,
        dense_layers=dense,
    )


def _window(fields: Fields, kind: str, layers: int) -> tuple[int | None, int]:
    """Sliding window in tokens, and how many layers have it."""
    if fields.get("use_sliding_window") is False:
        return None, 0
    window = fields.integer("sliding_window", "attention_chunk_size", optional=True)
    if window is None:
        return None, 0
    kinds = fields.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return window, sum(1 for layer in kinds if layer in ("sliding_attention", "chunked_attention"))
    if kind.startswith("llama4"):
        return window, layers - layers // fields.integer("no_rope_layer_interval", default=4)
    # Without a list: every sixth layer sees everything in Gemma 3, every second one in Gemma 2 and gpt-oss.
    period = fields.integer(
        "sliding_window_pattern", default={"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6}.get(kind, 1)
    )
    return window, layers if period == 1 else layers - layers // period


def _weights(document: Mapping[str, Any]) -> Precision:
    quantization = document.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return Precision.BF16  # engines load float32 checkpoints as 16 bits too
    method = str(quantization.get("quant_method", "")).lower()
    bits = _bits(quantization)
    if bits == 4 or (bits is None and method in _FOUR_BIT):
        floats = (
            method in _FOUR_BIT_FLOATS
            or "float" in (group.get("type") for group in _groups(quantization))
            or "FP4" in _algorithm(quantization)
        )
        return Precision.FP4 if floats else Precision.INT4
    if bits == 8 or (bits is None and method in _EIGHT_BIT):
        return Precision.FP8
    raise ModelConfigError(
        "quantization_config.quant_method",
        f"is {method!r}, which is not known; known are {', '.join(sorted(_FOUR_BIT | _EIGHT_BIT))}",
    )


def _scale_block(document: Mapping[str, Any]) -> int:
    """Columns that share one FP8 scale (`weight_block_size`); 0: no blocks."""
    quantization = document.get("quantization_config")
    block = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    return block[0] if isinstance(block, Sequence) and block and isinstance(block[0], int) else 0


def _algorithm(quantization: Mapping[str, Any]) -> str:
    return str(quantization.get("quant_algo", "")).upper()


def _bits(quantization: Mapping[str, Any]) -> int | None:
    """Bits per weight where the method leaves them open."""
    if quantization.get("load_in_8bit"):
        return 8
    if "FP4" in _algorithm(quantization):
        return 4
    found = quantization.get("bits")
    if found is None:
        for group in _groups(quantization):
            found = group.get("num_bits")
    return found if isinstance(found, int) else None


def _groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How the weights of each group of compressed-tensors are stored."""
    groups = quantization.get("config_groups")
    found = groups.values() if isinstance(groups, Mapping) else ()
    weights = [group.get("weights") for group in found if isinstance(group, Mapping)]
    return [each for each in weights if isinstance(each, Mapping)]
