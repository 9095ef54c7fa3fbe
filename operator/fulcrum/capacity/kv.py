"""Size of the KV cache, how many tokens of it fit, and how long it takes to move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fulcrum.capacity.accelerators import (
    COLLECTIVE_BYTES,
    CPU,
    CPU_KV_BYTES,
    DESCRIPTOR_SECONDS,
    LINK_EFFICIENCY,
    RUNTIME_BYTES,
    TCP_BYTES_PER_SECOND,
    TRANSFER_BASE_SECONDS,
)
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision

BLOCK_TOKENS: Final = 16
"""Tokens in one of vLLM's KV blocks where nothing else is asked for."""
CONTEXT_TOKENS: Final = 8192
"""Tokens of a request of which sliding windows and states are counted, where its length is not known."""


class Link(StrEnum):
    """What lies between a prefill and a decode worker."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    NETWORK = "network"
    """RDMA."""
    TCP = "tcp"
    """The same network without RDMA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCost:
    """Moving the KV of one request takes `base_seconds + seconds_per_token * tokens`."""

    base_seconds: float
    seconds_per_token: float = 0.0
    """0: not known."""

    def seconds(self, tokens: float) -> float:
        """Seconds for the KV of `tokens`."""
        return self.base_seconds + self.seconds_per_token * tokens

    def slower(self, other: TransferCost) -> TransferCost:
        """Cost between an end like this and one like `other`: the slower end sets the pace."""
        return TransferCost(
            base_seconds=max(self.base_seconds, other.base_seconds),
            seconds_per_token=max(self.seconds_per_token, other.seconds_per_token),
        )


UNKNOWN_TRANSFER: Final = TransferCost(base_seconds=TRANSFER_BASE_SECONDS)
"""Stands in where nothing is known of a pool's model: the rate is then learnt from transfers alone."""


def kv_bytes_per_token_and_layer(model: ModelConfig, kv: Precision) -> float:
    """Bytes that one token takes in the cache of one layer, over all ranks, without replicas.

    Grouped queries: 2 * KV heads * head size * bytes (AI Systems Performance Engineering, ch. 18). MLA: (latent rank +
    rotary size) * bytes (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
    """
    if model.mla is not None:
        return (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * kv.bytes
    return 2 * model.kv_heads * model.head_dim * kv.bytes


def kv_bytes_per_token(model: ModelConfig, kv: Precision, *, context_tokens: float = CONTEXT_TOKENS) -> float:
    """Bytes that one token takes in the cache, over all layers and ranks, without replicas.

    A layer with a sliding window keeps no more than the window of a request, and a state has one size whatever comes
    before it: their bytes are those of a request of `context_tokens`, shared out over its tokens.
    """
    window = min(1.0, (model.window_tokens or 0) / context_tokens)
    layers = model.full_layers + model.windowed_layers * window
    return layers * kv_bytes_per_token_and_layer(model, kv) + model.state_bytes / context_tokens


def kv_bytes_per_token_and_gpu(shape: EngineShape) -> float:
    """Bytes that one token takes on each GPU of the engine."""
    model, states = shape.model, shape.model.state_bytes / CONTEXT_TOKENS
    cached = kv_bytes_per_token(model, shape.kv) - states
    return (cached / shape.kv_split + states / shape.tensor) / shape.pipeline


def weight_bytes_per_gpu(shape: EngineShape) -> float:
    """Bytes of weights on each GPU; stages are taken as alike. Ranks of data parallel share nothing but the experts."""
    model = shape.model
    experts = model.expert_parameters * shape.weights.bytes
    return (model.weight_bytes(shape.weights) - experts) / shape.rank_gpus + experts / shape.gpus


def activation_bytes_per_gpu(shape: EngineShape) -> float:
    """Peak of what one engine step needs beside weights and cache: hidden states, feed-forward part, logits.

    vLLM reserves what its profiling run takes: the largest step, and the sampling of `max_num_seqs` requests.
    """
    model = shape.model
    width, copies = float(model.intermediate), 0
    if model.moe is not None:
        width = model.moe.active_experts * model.moe.expert_intermediate + model.moe.shared_intermediate
        copies = model.moe.active_experts  # each expert of a token has its own copy of it
    per_token = (6 + copies) * model.hidden + 3 * width / shape.tensor
    hidden = shape.max_batched_tokens * per_token * Precision.BF16.bytes
    # Of each logit 16 bytes: FP32, and sorted with their 8-byte places (`vllm/v1/sample`).
    return hidden + shape.max_batch * model.vocab * 16


def kv_memory_bytes_per_gpu(shape: EngineShape) -> float:
    """Memory of one GPU that is left for the cache; negative when the weights do not fit."""
    if shape.accelerator is CPU:
        return CPU_KV_BYTES
    collectives = COLLECTIVE_BYTES if shape.gpus > 1 else 0
    usable = shape.accelerator.memory_bytes * shape.memory_utilization
    return usable - weight_bytes_per_gpu(shape) - activation_bytes_per_gpu(shape) - RUNTIME_BYTES - collectives


def kv_capacity_tokens(shape: EngineShape, *, kv_memory_bytes: int | None = None) -> int:
    """Tokens that fit into the cache of one engine, in whole blocks.

    `kv_memory_bytes` is a size of the cache per GPU that was set by hand (`engine.kvCache.memory`).

    Of an engine of several ranks it is the cache of one of them.

    Raises:
        EngineShapeError: the weights leave no room for a single block.
    """
    room = kv_memory_bytes if kv_memory_bytes is not None else kv_memory_bytes_per_gpu(shape)
    blocks = math.floor(room / (kv_bytes_per_token_and_gpu(shape) * BLOCK_TOKENS))
    if blocks < 1:
        raise EngineShapeError(
            f"{shape.model.name} in {shape.weights} does not fit on {shape.gpus} x {shape.accelerator.name}: each "
            f"would hold {weight_bytes_per_gpu(shape) / 1e9:.1f} GB of weights in "
            f"{shape.accelerator.memory_bytes / 1e9:.1f} GB. Use more GPUs (tensor or pipeline parallelism), smaller "
            "weights, or another accelerator."
        )
    return blocks * BLOCK_TOKENS


def transfer_cost(shape: EngineShape, link: Link = Link.NETWORK, *, block_tokens: int = BLOCK_TOKENS) -> TransferCost:
    """Time to move KV between two engines of this shape; their ranks move their parts side by side.

    `block_tokens` is what one descriptor covers, an engine's KV block; `COLLATED_TOKENS` where blocks were collated.

    Raises:
        EngineShapeError: the accelerator has no such link.
    """
    gpu = shape.accelerator
    rates = {
        Link.NVLINK: gpu.nvlink_bytes_per_second,
        Link.PCIE: gpu.pcie_bytes_per_second,
        Link.NETWORK: gpu.network_bytes_per_second,
        Link.TCP: TCP_BYTES_PER_SECOND / LINK_EFFICIENCY,
    }
    if (rate := rates[link]) is None:
        raise EngineShapeError(f"{gpu.name} has no {link}; it has pcie, network and tcp")
    wire = kv_bytes_per_token_and_gpu(shape) / (rate * LINK_EFFICIENCY)
    return TransferCost(base_seconds=TRANSFER_BASE_SECONDS, seconds_per_token=wire + DESCRIPTOR_SECONDS / block_tokens)
