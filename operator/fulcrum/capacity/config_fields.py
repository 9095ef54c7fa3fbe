"""Fields of a Hugging Face `config.json`, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, overload

_MOST_TEXT: Final = 128
"""Longest text of a field, in characters: names of kinds and formats are shorter."""
_MOST_ITEMS: Final = 1024
"""Longest list of a field: one item for each layer."""
MOST_BYTES: Final = 65_536
"""Largest document from outside (a config.json, a profile), in bytes: about 500 measured rows."""
_GROUPS: Final = "config_groups"
"""A table whose keys are free."""
_READ: Final = frozenset(
    (
        "model_type", "hidden_size", "n_embd", "n_embed", "d_model", "num_attention_heads", "n_head", "num_heads",
        "num_hidden_layers", "n_layer", "num_layers", "num_key_value_heads", "head_dim", "intermediate_size", "ffn_dim",
        "n_inner", "intermediate_size_mlp", "vocab_size", "tie_word_embeddings", "max_position_embeddings",
        "attn_output_gate", "index_topk", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
        "experts_per_token", "num_experts_per_token", "moe_intermediate_size", "shared_expert_intermediate_size",
        "shared_intermediate_size", "n_shared_experts", "first_k_dense_replace", "interleave_moe_layer_step",
        "mlp_only_layers", "use_sliding_window", "sliding_window", "attention_chunk_size", "sliding_window_pattern",
        "no_rope_layer_interval", "layer_types", "layers_block_type", "linear_num_key_heads",
        "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
        "full_attention_interval", "mamba_n_heads", "mamba_num_heads", "mamba_d_state", "mamba_d_conv",
        "mamba_expand", "mamba_n_groups", "ssm_state_size", "hybrid_override_pattern", "linear_attn_config",
        "quant_method", "quant_algo", "bits", "num_bits", "type", "load_in_8bit", "weight_block_size",
        "kv_cache_quant_algo", "text_config", "quantization_config", "quantization", "weights", "kv_cache_scheme",
        _GROUPS,
    )
)  # fmt: skip
"""Fields that Fulcrum reads, at any depth."""


class ModelConfigError(ValueError):
    """A config.json that cannot be used. Says which field, and what it must be."""

    def __init__(self, field: str, fix: str) -> None:
        super().__init__(f"config.json: {field}: {fix}")
        self.field = field
        self.fix = fix


class Fields:
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
                raise ModelConfigError(name, f"is {repr(found)[:_MOST_TEXT]}, must be a positive integer")
            most = 2**31  # products of larger ones would not fit a float
            if found > most:
                raise ModelConfigError(name, f"is larger than {most}, which no model has")
            return found
        if default is not None or optional:
            return default
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ModelConfigError(names[0], f"is missing; add it as a positive integer{others}")

    def get(self, name: str, default: Any = None) -> Any:
        return self._document.get(name, default)


def relevant(document: Mapping[str, Any], *, depth: int = 5) -> dict[str, Any]:
    """Return what Fulcrum reads of a config.json, whoever wrote it: values out of their usual bounds are left out.

    The rest is read as the whole document is. The deepest of what is read has five levels: text_config,
    quantization_config, config_groups, a group, its weights.
    """
    found = ((name, _kept(name, value, depth - 1)) for name, value in document.items() if name in _READ)
    return {name: kept for name, kept in found if kept is not None}


def _kept(name: str, value: Any, depth: int) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case bool() | int() | float():
            return value
        case str():
            return value[:_MOST_TEXT]
        case list() if len(value) <= _MOST_ITEMS and all(isinstance(each, str | int) for each in value):
            return [each[:_MOST_TEXT] if isinstance(each, str) else each for each in value]
        case dict() if value and depth > 0:
            # Of some tables it counts that they are there.
            return _groups(value, depth) if name == _GROUPS else relevant(value, depth=depth) or {"type": "other"}
    return None


def _groups(value: dict[str, Any], depth: int) -> dict[str, Any]:
    groups = [each for each in value.values() if isinstance(each, dict)][:16]  # checkpoints have one to three
    return {f"group_{number}": relevant(each, depth=depth) for number, each in enumerate(groups)}
