"""Writes tiny models of other kinds than Llama's, with random weights: `python tiny_kinds.py KIND TINY FOLDER`.

Config and weights are those of transformers' own classes; the tokenizer is that of the folder `TINY`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

KINDS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_moe": {
        "decoder_sparse_step": 1,
        "head_dim": 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
    },
    "granitemoehybrid": {
        "attention_multiplier": 0.125,
        "hidden_size": 256,
        "intermediate_size": 128,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "mamba_chunk_size": 64,
        "mamba_d_head": 64,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "position_embedding_type": "rope",
        "shared_intermediate_size": 128,
    },
}
"""Sizes by `model_type`."""
_COMMON: Final[dict[str, Any]] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 8192,
    "num_hidden_layers": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
_SEED: Final = 1
_EMBEDDING_STD: Final = 0.02
_NORM: Final = 100.0
"""Weight of the last norm: as in the tiny model, the likeliest token of a step leads."""


def write(kind: str, tiny: Path, folder: Path) -> None:
    """Write the model. Matrices keep the size of what goes through them, so that tokens depend on the whole prompt."""
    import torch
    import transformers

    torch.manual_seed(_SEED)
    config = transformers.AutoConfig.for_model(kind, **{**_COMMON, **KINDS[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "embed_tokens" in name:
                weights.normal_(std=_EMBEDDING_STD)
            elif weights.ndim in (2, 3) and "conv" not in name:
                weights.normal_(std=weights.shape[-1] ** -0.5)
        model.model.norm.weight.fill_(_NORM)
    model.save_pretrained(folder)
    for path in (*tiny.glob("tokenizer*"), *tiny.glob("chat_template*"), *tiny.glob("special_tokens*")):
        shutil.copy(path, folder)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
