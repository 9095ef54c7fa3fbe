"""LoRA adapters of random weights for a small Llama model, as PEFT writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

_SCALE = 0.5
"""Of the random weights: large enough that each adapter of the tiny model answers differently from the first token."""


def write_adapter(model: Path, folder: Path, *, seed: int, rank: int = 8, scale: float = _SCALE) -> str:
    """Write an adapter for the model in `model`; the folder's path."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    widths = {"q_proj": heads * head, "v_proj": config["num_key_value_heads"] * head}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, width in widths.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = _random(random, rank, hidden, scale)
            tensors[f"{name}.lora_B.weight"] = _random(random, width, rank, scale)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": sorted(widths), "base_model_name_or_path": str(model),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return str(folder)


def _random(random: np.random.Generator, rows: int, columns: int, scale: float) -> Any:
    return (scale * random.standard_normal((rows, columns))).astype(np.float32)
