"""Dimensions of well-known models, from their published config.json files."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fulcrum.capacity.model import MlaConfig, ModelConfig, MoeConfig, StateConfig
from fulcrum.capacity.precision import Precision, named_precision
from fulcrum.capacity.state_config import delta_network


class UnknownModelError(LookupError):
    """No built-in dimensions under that name."""

    def __init__(self, name: str) -> None:
        close = difflib.get_close_matches(name.lower(), [known.lower() for known in KNOWN_MODELS], n=3, cutoff=0.4)
        by_lower = {known.lower(): known for known in KNOWN_MODELS}
        hint = f" Close: {', '.join(by_lower[each] for each in close)}." if close else ""
        super().__init__(f"no dimensions are known for the model {name!r}: give its config.json.{hint}")
        self.name = name


def _llama(
    name: str,
    sizes: tuple[int, int, int, int, int, int],
    *,
    head_dim: int | None = None,
    tied: bool = False,
    moe: MoeConfig | None = None,
    window: tuple[int, int] | None = None,
    state: StateConfig | None = None,
    scale_block: int = 0,
    weights: Precision = Precision.BF16,
) -> ModelConfig:
    """A model of the Llama form: grouped queries, gated feed-forward part.

    `sizes` are layers, hidden, heads, KV heads, intermediate, vocabulary; `window` is (tokens, layers).
    """
    layers, hidden, heads, kv_heads, intermediate, vocab = sizes
    return ModelConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        tied_embeddings=tied,
        moe=moe,
        window_tokens=window[0] if window else None,
        windowed_layers=window[1] if window else 0,
        state=state,
        gated_attention=state is not None,
        scale_block=scale_block,
        weights=weights,
    )


def _gpt(name: str, sizes: tuple[int, int, int, int, int]) -> ModelConfig:
    """A model of the GPT form: plain multi-head attention, two-matrix feed-forward part of four times the width.

    `sizes` are layers, hidden, heads, vocabulary, rows of the position table.
    """
    layers, hidden, heads, vocab, positions = sizes
    return ModelConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocab=vocab,
        tied_embeddings=True,
        gated_mlp=False,
        learned_positions=positions,
    )


def _deepseek(
    name: str,
    sizes: tuple[int, int, int, int, int],
    moe: MoeConfig,
    *,
    q_lora_rank: int | None = 1536,
    head_dims: tuple[int, int] = (128, 128),
    scale_block: int = 0,
    weights: Precision = Precision.BF16,
) -> ModelConfig:
    """A model of the DeepSeek-V2 form: latent attention, shared and routed experts.

    `sizes` are layers, hidden, heads, intermediate, vocabulary; `head_dims` those of keys and values.
    """
    layers, hidden, heads, intermediate, vocab = sizes
    return ModelConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        mla=MlaConfig(
            q_lora_rank=q_lora_rank,
            kv_lora_rank=512,
            qk_nope_head_dim=head_dims[0],
            qk_rope_head_dim=64,
            v_head_dim=head_dims[1],
        ),
        moe=moe,
        scale_block=scale_block,
        weights=weights,
    )


def _moe(experts: int, active: int, width: int, *, shared: int = 0, dense: int = 0) -> MoeConfig:
    return MoeConfig(
        experts=experts,
        active_experts=active,
        expert_intermediate=width,
        shared_intermediate=shared,
        dense_layers=dense,
    )


_BLOCK: Final = 128
_V3: Final = _moe(256, 8, 2048, shared=2048, dense=3)
_FP8: Final = Precision.FP8
_FP4: Final = Precision.FP4

_MODELS: Final = (
    _llama("meta-llama/Llama-2-7b-hf", (32, 4096, 32, 32, 11008, 32000)),
    _llama("meta-llama/Llama-2-13b-hf", (40, 5120, 40, 40, 13824, 32000)),
    _llama("meta-llama/Llama-2-70b-hf", (80, 8192, 64, 8, 28672, 32000)),
    _llama("meta-llama/Llama-3.1-8B-Instruct", (32, 4096, 32, 8, 14336, 128256)),
    _llama("meta-llama/Llama-3.1-70B-Instruct", (80, 8192, 64, 8, 28672, 128256)),
    _llama("meta-llama/Llama-3.1-405B-Instruct", (126, 16384, 128, 8, 53248, 128256)),
    _llama("meta-llama/Llama-3.2-1B-Instruct", (16, 2048, 32, 8, 8192, 128256), tied=True),
    _llama("meta-llama/Llama-3.2-3B-Instruct", (28, 3072, 24, 8, 8192, 128256), tied=True),
    _llama("meta-llama/Llama-3.3-70B-Instruct", (80, 8192, 64, 8, 28672, 128256)),
    _llama("mistralai/Mistral-7B-Instruct-v0.3", (32, 4096, 32, 8, 14336, 32768)),
    _llama("mistralai/Mistral-Small-24B-Instruct-2501", (40, 5120, 32, 8, 32768, 131072), head_dim=128),
    _llama("mistralai/Mistral-Large-Instruct-2407", (88, 12288, 96, 8, 28672, 32768)),
    _llama("mistralai/Mixtral-8x7B-Instruct-v0.1", (32, 4096, 32, 8, 14336, 32000), moe=_moe(8, 2, 14336)),
    _llama("mistralai/Mixtral-8x22B-Instruct-v0.1", (56, 6144, 48, 8, 16384, 32768), moe=_moe(8, 2, 16384)),
    _llama("Qwen/Qwen2.5-0.5B-Instruct", (24, 896, 14, 2, 4864, 151936), tied=True),
    _llama("Qwen/Qwen2.5-1.5B-Instruct", (28, 1536, 12, 2, 8960, 151936), tied=True),
    _llama("Qwen/Qwen2.5-3B-Instruct", (36, 2048, 16, 2, 11008, 151936), tied=True),
    _llama("Qwen/Qwen2.5-7B-Instruct", (28, 3584, 28, 4, 18944, 152064)),
    _llama("Qwen/Qwen2.5-14B-Instruct", (48, 5120, 40, 8, 13824, 152064)),
    _llama("Qwen/Qwen2.5-32B-Instruct", (64, 5120, 40, 8, 27648, 152064)),
    _llama("Qwen/Qwen2.5-72B-Instruct", (80, 8192, 64, 8, 29568, 152064)),
    _llama("Qwen/Qwen2-57B-A14B-Instruct", (28, 3584, 28, 4, 18944, 151936), moe=_moe(64, 8, 2560, shared=20480)),
    _llama("Qwen/Qwen3-0.6B", (28, 1024, 16, 8, 3072, 151936), head_dim=128, tied=True),
    _llama("Qwen/Qwen3-1.7B", (28, 2048, 16, 8, 6144, 151936), head_dim=128, tied=True),
    _llama("Qwen/Qwen3-4B", (36, 2560, 32, 8, 9728, 151936), head_dim=128, tied=True),
    _llama("Qwen/Qwen3-8B", (36, 4096, 32, 8, 12288, 151936), head_dim=128),
    _llama("Qwen/Qwen3-14B", (40, 5120, 40, 8, 17408, 151936), head_dim=128),
    _llama("Qwen/Qwen3-32B", (64, 5120, 64, 8, 25600, 151936), head_dim=128),
    _llama("Qwen/Qwen3-30B-A3B", (48, 2048, 32, 4, 6144, 151936), head_dim=128, moe=_moe(128, 8, 768)),
    _llama("Qwen/Qwen3-235B-A22B", (94, 4096, 64, 4, 12288, 151936), head_dim=128, moe=_moe(128, 8, 1536)),
    _llama(
        "Qwen/Qwen3-235B-A22B-FP8",
        (94, 4096, 64, 4, 12288, 151936),
        head_dim=128,
        moe=_moe(128, 8, 1536),
        scale_block=_BLOCK,
        weights=_FP8,
    ),
    _llama(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct", (62, 6144, 96, 8, 8192, 151936), head_dim=128, moe=_moe(160, 8, 2560)
    ),
    _llama(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        (48, 2048, 16, 2, 5632, 151936),
        head_dim=256,
        moe=_moe(512, 10, 512, shared=512),
        state=delta_network(36, 2048, heads=(16, 32)),
    ),
    _llama(
        "Qwen/Qwen3.5-35B-A3B",
        (40, 2048, 16, 2, 2048, 248320),
        head_dim=256,
        moe=_moe(256, 8, 512, shared=512),
        state=delta_network(30, 2048, heads=(16, 32)),
    ),
    _llama(
        "Qwen/Qwen3.5-397B-A17B",
        (60, 4096, 32, 2, 4096, 248320),
        head_dim=256,
        moe=_moe(512, 10, 1024, shared=1024),
        state=delta_network(45, 4096, heads=(16, 64)),
    ),
    _llama(
        "zai-org/GLM-4.5",
        (92, 5120, 96, 8, 12288, 151552),
        head_dim=128,
        moe=_moe(160, 8, 1536, shared=1536, dense=3),
    ),
    _llama(
        "zai-org/GLM-4.5-Air",
        (46, 4096, 96, 8, 10944, 151552),
        head_dim=128,
        moe=_moe(128, 8, 1408, shared=1408, dense=1),
    ),
    _llama(
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        (48, 5120, 40, 8, 16384, 202048),
        moe=_moe(16, 1, 8192, shared=8192),
        window=(8192, 36),
    ),
    _llama(
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        (48, 5120, 40, 8, 16384, 202048),
        moe=_moe(128, 1, 8192, shared=8192, dense=24),
        window=(8192, 36),
    ),
    _llama("HuggingFaceTB/SmolLM2-135M-Instruct", (30, 576, 9, 3, 1536, 49152), tied=True),
    _llama("HuggingFaceTB/SmolLM2-360M-Instruct", (32, 960, 15, 5, 2560, 49152), tied=True),
    _llama("HuggingFaceTB/SmolLM2-1.7B-Instruct", (24, 2048, 32, 32, 8192, 49152), tied=True),
    _llama("microsoft/phi-4", (40, 5120, 40, 10, 17920, 100352)),
    _llama("google/gemma-2-9b-it", (42, 3584, 16, 8, 14336, 256000), head_dim=256, tied=True, window=(4096, 21)),
    _llama("google/gemma-2-27b-it", (46, 4608, 32, 16, 36864, 256000), head_dim=128, tied=True, window=(4096, 23)),
    _llama("google/gemma-3-1b-it", (26, 1152, 4, 1, 6912, 262144), head_dim=256, tied=True, window=(512, 22)),
    _llama("google/gemma-3-4b-it", (34, 2560, 8, 4, 10240, 262208), head_dim=256, tied=True, window=(1024, 29)),
    _llama("google/gemma-3-12b-it", (48, 3840, 16, 8, 15360, 262208), head_dim=256, tied=True, window=(1024, 40)),
    _llama("google/gemma-3-27b-it", (62, 5376, 32, 16, 21504, 262208), head_dim=128, tied=True, window=(1024, 52)),
    _llama(
        "openai/gpt-oss-20b",
        (24, 2880, 64, 8, 2880, 201088),
        head_dim=64,
        moe=_moe(32, 4, 2880),
        window=(128, 12),
        weights=_FP4,
    ),
    _llama(
        "openai/gpt-oss-120b",
        (36, 2880, 64, 8, 2880, 201088),
        head_dim=64,
        moe=_moe(128, 4, 2880),
        window=(128, 18),
        weights=_FP4,
    ),
    _llama(
        "MiniMaxAI/MiniMax-M2.5",
        (62, 3072, 48, 8, 1536, 200064),
        head_dim=128,
        moe=_moe(256, 8, 1536),
        scale_block=_BLOCK,
        weights=_FP8,
    ),
    _deepseek("deepseek-ai/DeepSeek-V2", (60, 5120, 128, 12288, 102400), _moe(160, 6, 1536, shared=3072, dense=1)),
    _deepseek(
        "deepseek-ai/DeepSeek-V2-Lite",
        (27, 2048, 16, 10944, 102400),
        _moe(64, 6, 1408, shared=2816, dense=1),
        q_lora_rank=None,
    ),
    _deepseek("deepseek-ai/DeepSeek-V3", (61, 7168, 128, 18432, 129280), _V3, scale_block=_BLOCK, weights=_FP8),
    _deepseek("deepseek-ai/DeepSeek-R1", (61, 7168, 128, 18432, 129280), _V3, scale_block=_BLOCK, weights=_FP8),
    _deepseek(
        "moonshotai/Kimi-K2-Instruct",
        (61, 7168, 64, 18432, 163840),
        _moe(384, 8, 2048, shared=2048, dense=1),
        scale_block=_BLOCK,
        weights=_FP8,
    ),
    _deepseek(
        "moonshotai/Kimi-K2-Thinking",
        (61, 7168, 64, 18432, 163840),
        _moe(384, 8, 2048, shared=2048, dense=1),
        weights=Precision.INT4,
    ),
    _deepseek(
        "zai-org/GLM-5",
        (78, 6144, 64, 12288, 154880),
        _moe(256, 8, 2048, shared=2048, dense=3),
        q_lora_rank=2048,
        head_dims=(192, 256),
    ),
    _gpt("facebook/opt-1.3b", (24, 2048, 32, 50272, 2050)),
    _gpt("facebook/opt-6.7b", (32, 4096, 32, 50272, 2050)),
    _gpt("facebook/opt-13b", (40, 5120, 40, 50272, 2050)),
    _gpt("facebook/opt-30b", (48, 7168, 56, 50272, 2050)),
    _gpt("facebook/opt-66b", (64, 9216, 72, 50272, 2050)),
    _gpt("facebook/opt-175b", (96, 12288, 96, 50272, 2050)),
    _gpt("bigscience/bloom", (70, 14336, 112, 250880, 0)),
)

KNOWN_MODELS: Final = MappingProxyType({model.name: model for model in _MODELS})
"""Built-in models by hub id."""

_SUFFIX: Final = re.compile(
    r"-(instruct|chat|it|hf|base|thinking|dynamic|quantized(\.w\da\d+)?|block|(nv|mx)?fp4(-v\d)?|fp8|bf16|fp16|awq|gptq|"
    r"int[48]|[48]bit|w\da\d+|bnb|2[3-6](0\d|1[0-2])|0324|0528|0905)(?=-|$)"
)
"""What does not change the dimensions: kind of training, number format, month of the release."""
_ALIASES: Final = {
    "llama2-70b": "meta-llama/Llama-2-70b-hf",
    "bloom-176b": "bigscience/bloom",
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3",
    "deepseek-v3.1-terminus": "deepseek-ai/DeepSeek-V3",
    "deepseek-v3.2": "deepseek-ai/DeepSeek-V3",
    "deepseek-v3.2-exp": "deepseek-ai/DeepSeek-V3",
    "glm-4.6": "zai-org/GLM-4.5",
    "glm-4.7": "zai-org/GLM-4.5",
    "kimi-k2-thinking": "moonshotai/Kimi-K2-Thinking",
    "kimi-k2.5": "moonshotai/Kimi-K2-Thinking",
    "llama-3-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "mistral-small-3.1-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "mistral-small-3.2-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "qwen3-coder-30b-a3b": "Qwen/Qwen3-30B-A3B",
}


def _plain(name: str) -> str:
    """A name without organisation and without what does not change the dimensions."""
    return _SUFFIX.sub("", name.rpartition("/")[2].lower()).replace("meta-", "")


_BY_PLAIN_NAME: Final = {_plain(model.name): model for model in reversed(_MODELS)}


def known_model(name: str) -> ModelConfig:
    """The built-in model under a hub id or its last part; `-Instruct`, `-Chat`, `-2507` and the like may differ.

    It has the name that was asked for, which messages show. Weights are in the format that the name ends with
    (`-FP8`, `-AWQ`), else in that of the known release.

    Raises:
        UnknownModelError: nothing fits.
    """
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name]
    alias = _ALIASES.get(name.lower()) or _ALIASES.get(_plain(name)) or ""
    found = KNOWN_MODELS.get(alias) or _BY_PLAIN_NAME.get(_plain(name))
    if found is None:
        raise UnknownModelError(name)
    weights = named_precision(name) or found.weights
    # Qwen's own FP8 releases share scales in blocks; others have one for each channel.
    blocks = weights is _FP8 and name.lower().startswith("qwen/")
    return replace(found, name=name, weights=weights, scale_block=_BLOCK if blocks else found.scale_block)
