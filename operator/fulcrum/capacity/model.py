"""The numbers of a transformer that decide how fast it runs and how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.capacity.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent per token."""

    q_lora_rank: int | None
    """None: queries are projected directly."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Mixture of experts in the feed-forward part."""

    experts: int
    """Routed experts per layer."""
    active_experts: int
    """Routed experts that one token uses."""
    expert_intermediate: int
    shared_intermediate: int = 0
    """Summed width of the experts that every token uses."""
    dense_layers: int = 0
    """Layers that have one plain feed-forward part of width `ModelConfig.intermediate` instead."""
    imbalance: float = 1.0
    """Tokens of the busiest GPU over the mean, beyond chance, where GPUs hold whole experts: 1.0 where routing is even
    or EPLB evens it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """Layers with a state of fixed size instead of a KV cache: Mamba, gated delta networks."""

    layers: int
    parameters: int
    """Weights that mix tokens in one of these layers."""
    bytes: int
    """State of one sequence in one of these layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Dimensions of a decoder-only model. Parameter counts leave out biases (under 0.2 %)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    """Three matrices (gate, up, down); False: two (OPT, BLOOM)."""
    learned_positions: int = 0
    """Rows of a learned position table."""
    mla: MlaConfig | None = None
    moe: MoeConfig | None = None
    window_tokens: int | None = None
    """Sliding window of `windowed_layers`."""
    windowed_layers: int = 0
    state: StateConfig | None = None
    gated_attention: bool = False
    """Queries come with a gate of their size (Qwen3-Next)."""
    scale_block: int = 0
    """Columns that share one FP8 scale in the published weights; 0: no blocks."""
    weights: Precision = Precision.BF16
    """Format in which the weights are published."""

    @property
    def attention_parameters(self) -> int:
        """Weights of the attention of one layer."""
        if (mla := self.mla) is None:
            gate = self.heads if self.gated_attention else 0
            return self.hidden * self.head_dim * (2 * (self.heads + self.kv_heads) + gate)
        query_dim = self.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        query = self.hidden * query_dim if mla.q_lora_rank is None else mla.q_lora_rank * (self.hidden + query_dim)
        down = self.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        up = mla.kv_lora_rank * self.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return query + down + up + self.heads * mla.v_head_dim * self.hidden

    @property
    def attention_layers(self) -> int:
        """Layers with a KV cache."""
        return self.layers - (self.state.layers if self.state is not None else 0)

    @property
    def full_layers(self) -> int:
        """Layers that attend to all that came before."""
        return self.attention_layers - self.windowed_layers

    @property
    def state_bytes(self) -> int:
        """State of one sequence, all layers."""
        return self.state.layers * self.state.bytes if self.state is not None else 0

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts of all layers."""
        if (moe := self.moe) is None:
            return 0
        return (self.layers - moe.dense_layers) * moe.experts * self._mlp(moe.expert_intermediate)

    @property
    def active_expert_parameters(self) -> int:
        """Weights of the routed experts that one token uses, over all layers."""
        return 0 if self.moe is None else self.expert_parameters * self.moe.active_experts // self.moe.experts

    @property
    def dense_parameters(self) -> int:
        """Weights that every token multiplies with, without embeddings and output head."""
        attention = self.attention_layers * self.attention_parameters
        if self.state is not None:
            attention += self.state.layers * self.state.parameters
        if (moe := self.moe) is None:
            return attention + self.layers * self._mlp(self.intermediate)
        per_sparse_layer = self._mlp(moe.shared_intermediate) + self.hidden * moe.experts
        sparse = (self.layers - moe.dense_layers) * per_sparse_layer
        return attention + moe.dense_layers * self._mlp(self.intermediate) + sparse

    @property
    def head_parameters(self) -> int:
        """Weights of the output head (those of the embedding when they are tied)."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All weights."""
        norms = self.hidden * (2 * self.layers + 1)
        tables = self.head_parameters * (1 if self.tied_embeddings else 2) + self.hidden * self.learned_positions
        return self.dense_parameters + self.expert_parameters + tables + norms

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses, as model names count them (`A22B`): embeddings included."""
        return self.parameters - self.expert_parameters + self.active_expert_parameters

    @property
    def attention_dims(self) -> int:
        """Multiply-adds per layer and pair of tokens: query times key, and weight times value, over all heads."""
        if (mla := self.mla) is None:
            return self.heads * 2 * self.head_dim
        return self.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)

    def weight_bytes(self, precision: Precision | None = None) -> float:
        """Bytes of all weights. In 8 and 4 bits the tables stay in BF16, in 4 bits the attention too, as engines do."""
        chosen = precision or self.weights
        body = self.dense_parameters * self.dense_precision(chosen).bytes + self.expert_parameters * chosen.bytes
        tables = self.parameters - self.dense_parameters - self.expert_parameters
        return body + tables * Precision.BF16.bytes

    def dense_precision(self, precision: Precision) -> Precision:
        """Format of the weights outside the routed experts: 4-bit releases of mixtures keep them in BF16."""
        return Precision.BF16 if precision.bytes < 1 and self.moe is not None else precision

    def _mlp(self, width: int) -> int:
        return self.hidden * width * (3 if self.gated_mlp else 2)
