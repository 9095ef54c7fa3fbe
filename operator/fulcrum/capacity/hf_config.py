"""From a Hugging Face `config.json` to a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, overload

from fulcrum.capacity.model import MlaConfig, ModelConfig, MoeConfig
from fulcrum.capacity.precision import Precision

_TWO_MATRIX_MLP: Final = frozenset({"opt", "bloom", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "mpt", "phi"})
_TIED_UNLESS_SAID: Final = frozenset({"opt", "bloom", "gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "mpt"})
_FOUR_BIT: Final = frozenset({"mxfp4", "nvfp4", "awq", "gptq", "bitsandbytes", "modelopt_fp4"})
_EIGHT_BIT: Final = frozenset({"fp8", "fbgemm_fp8", "modelopt", "compressed-tensors"})


class ModelConfigError(ValueError):
    """A config.json that cannot be used. Says which field, and what it must be."""

    def __init__(self, field: str, fix: str) -> None:
        super().__init__(f"config.json: {field}: {fix}")
        self.field = field
        self.fix = fix


class _Fields:
    """Reads positive integers under any of a field's names."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    @overload
    def integer(self, *names: str, default: int) -> int: ...
    @overload
    def integer(self, *names: str, default: None = None, optional: Literal[True]) -> int | None: ...
    @overload
    def integer(self, *names: str) -> int: ...
    def integer(self, *names: str, default: int | None = None, optional: bool = False) -> int | None:
        for name in names:
            found = self._document.get(name)
            if found is None:
                continue
            if isinstance(found, bool) or not isinstance(found, int) or found < 0 or (found == 0 and default != 0):
                raise ModelConfigError(name, f"is {found!r}, must be a positive integer")
            return found
        if default is not None or optional:
            return default
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ModelConfigError(names[0], f"is missing; add it as a positive integer{others}")

    def get(self, name: str) -> Any:
        return self._document.get(name)


def parse_model_config(document: Mapping[str, Any], *, name: str | None = None) -> ModelConfig:
    """Model dimensions from the parsed `config.json`; the text part of multimodal ones.

    Knows Llama, Mistral, Mixtral, Qwen 2/2.5/3 and their MoE kinds, DeepSeek V2/V3, Kimi K2, gpt-oss, Gemma 2/3,
    SmolLM, Phi, MiniMax M2, OPT and BLOOM; others with the same field names are read the same way.

    Raises:
        ModelConfigError: a field is missing or impossible.
    """
    if not isinstance(document, Mapping):
        raise ModelConfigError("(the document)", "must be a JSON object, as in the model's folder")
    text = document.get("text_config")
    fields = _Fields(text if isinstance(text, Mapping) else document)
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
        intermediate=intermediate,
        vocab=fields.integer("vocab_size"),
        tied_embeddings=bool(tied) if tied is not None else kind in _TIED_UNLESS_SAID,
        gated_mlp=kind not in _TWO_MATRIX_MLP,
        learned_positions=fields.integer("max_position_embeddings", default=0) if kind == "opt" else 0,
        mla=mla,
        moe=moe,
        window_tokens=window,
        windowed_layers=windowed,
        weights=_weights(document),
    )


def _mla(fields: _Fields) -> MlaConfig | None:
    if fields.get("kv_lora_rank") is None:
        return None
    return MlaConfig(
        q_lora_rank=fields.integer("q_lora_rank", optional=True),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def _moe(fields: _Fields, layers: int, intermediate: int) -> MoeConfig | None:
    experts = fields.integer("num_experts", "num_local_experts", "n_routed_experts", default=0)
    if experts <= 1:
        return None
    active = fields.integer("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
    if active > experts:
        raise ModelConfigError("num_experts_per_tok", f"is {active}, must be at most the {experts} experts")
    width = fields.integer("moe_intermediate_size", default=intermediate)
    shared = fields.integer("shared_expert_intermediate_size", default=0)
    if shared == 0:
        shared = fields.integer("n_shared_experts", default=0) * width
    dense = fields.integer("first_k_dense_replace", default=0)
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


def _window(fields: _Fields, kind: str, layers: int) -> tuple[int | None, int]:
    """Sliding window in tokens, and how many layers have it."""
    if fields.get("use_sliding_window") is False:
        return None, 0
    window = fields.integer("sliding_window", optional=True)
    if window is None:
        return None, 0
    kinds = fields.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return window, sum(1 for layer in kinds if layer == "sliding_attention")
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
        return Precision.FP4
    if bits == 8 or (bits is None and method in _EIGHT_BIT):
        return Precision.FP8
    raise ModelConfigError(
        "quantization_config.quant_method",
        f"is {method!r}, which is not known; known are {', '.join(sorted(_FOUR_BIT | _EIGHT_BIT))}",
    )


def _bits(quantization: Mapping[str, Any]) -> int | None:
    """Bits per weight where the method leaves them open."""
    if quantization.get("load_in_8bit"):
        return 8
    if "FP4" in str(quantization.get("quant_algo", "")).upper():
        return 4
    found = quantization.get("bits")
    groups = quantization.get("config_groups")  # compressed-tensors
    if found is None and isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                found = weights.get("num_bits")
    return found if isinstance(found, int) else None
