"""The weights of `fulcrum model tiny`: random ones, the same on every machine, for tests of everything but words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 72,
    "intermediate_size": 256,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "unk_token_id": 0,
    "vocab_size": 49152,
}
"""SmolLM2-135M with 2 layers instead of 30, and 72 dimensions instead of 576; attention and vocabulary are the same."""
_SEED: Final = 1
_WORD: Final = re.compile("Ġ[a-z]{3,}")
_MOST_WORDS: Final = 1024
"""Tokens that answers are made of: whole words, so that every token is text. The end of a text is not one of them."""
_WORD_STD: Final = 0.02
_OTHER_STD: Final = 0.005
"""Small against what the layers add: the output embedding is the input embedding, which repeats its token otherwise."""
_NORM: Final = 100.0
"""Weight of the last norm: the likeliest token of a step leads by 3.5 nats at the median, by 0.4 in 92 % of steps."""
_ATTENTION_STD: Final = 2.0
"""Of queries' and keys' entries: a head attends to few tokens, so that one changed word in 1,000 changes the answer."""


def write(folder: Path, vocabulary: dict[str, int], **sizes: int) -> None:
    """Write config and weights; `vocabulary` maps each token's text to its id, `sizes` replace those of CONFIG."""
    import torch
    from safetensors.torch import save_file

    config = {**CONFIG, **sizes}
    words = sorted(number for token, number in vocabulary.items() if _WORD.fullmatch(token))[:_MOST_WORDS]
    tensors = {name: torch.from_numpy(weights).to(torch.bfloat16) for name, weights in _weights(config, words)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _weights(config: dict[str, Any], words: list[int]) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Names and values of all weights. The input of each matrix has a mean square of about 1."""
    import numpy as np

    # Frozen by numpy, and uniform: no function of the C library, whose last bit differs, is in the values.
    random = np.random.RandomState(_SEED)

    def matrix(rows: int, columns: int, std: float) -> NDArray[np.float64]:
        return (random.random_sample((rows, columns)) - 0.5) * (12**0.5 * std)

    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    embedding = matrix(config["vocab_size"], hidden, _OTHER_STD)
    embedding[words] *= _WORD_STD / _OTHER_STD
    yield "model.embed_tokens.weight", embedding
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", np.ones(hidden)
        yield f"{layer}.self_attn.q_proj.weight", matrix(queries, hidden, _ATTENTION_STD * hidden**-0.5)
        yield f"{layer}.self_attn.k_proj.weight", matrix(keys, hidden, _ATTENTION_STD * hidden**-0.5)
        yield f"{layer}.self_attn.v_proj.weight", matrix(keys, hidden, hidden**-0.5)
        yield f"{layer}.self_attn.o_proj.weight", matrix(hidden, queries, queries**-0.5)
        yield f"{layer}.post_attention_layernorm.weight", np.ones(hidden)
        yield f"{layer}.mlp.gate_proj.weight", matrix(inner, hidden, hidden**-0.5)
        yield f"{layer}.mlp.up_proj.weight", matrix(inner, hidden, hidden**-0.5)
        yield f"{layer}.mlp.down_proj.weight", matrix(hidden, inner, inner**-0.5)
    yield "model.norm.weight", np.full(hidden, _NORM)
