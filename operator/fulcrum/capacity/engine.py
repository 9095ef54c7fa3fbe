"""One engine on its GPUs: what is loaded, in which format, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.capacity.accelerators import Accelerator
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.speed import MAX_BATCH


class EngineShapeError(ValueError):
    """A model, accelerator and parallelism that cannot go together. Says what can be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """A model on `tensor * pipeline` accelerators.

    Raises:
        EngineShapeError: the parallelism does not fit the model.
    """

    model: ModelConfig
    accelerator: Accelerator
    tensor: int = 1
    pipeline: int = 1
    weights: Precision = Precision.BF16
    kv: Precision = Precision.FP8
    max_batch: int = MAX_BATCH
    """vLLM's `max_num_seqs`."""
    max_batched_tokens: int = 8192
    """vLLM's `max_num_batched_tokens`."""
    memory_utilization: float = 0.9
    """vLLM's `gpu_memory_utilization`."""

    def __post_init__(self) -> None:
        """Refuses what no engine can run."""
        model = self.model
        if self.tensor < 1 or self.pipeline < 1:
            raise EngineShapeError("tensor and pipeline parallelism must be at least 1")
        if model.heads % self.tensor:
            raise EngineShapeError(
                f"tensor parallelism {self.tensor} does not divide the {model.heads} attention heads of {model.name}"
            )
        if self.pipeline > model.layers:
            raise EngineShapeError(
                f"{self.pipeline} pipeline stages need as many layers; {model.name} has {model.layers}"
            )
        if self.kv is Precision.FP4:
            raise EngineShapeError("the KV cache is kept in bf16 or fp8")
        if not 0 < self.memory_utilization <= 1:
            raise EngineShapeError("gpu_memory_utilization must be above 0 and at most 1")
        if self.max_batch < 1 or self.max_batched_tokens < 1:
            raise EngineShapeError("max_num_seqs and max_num_batched_tokens must be at least 1")

    @property
    def kv_split(self) -> int:
        """Over how many tensor-parallel ranks the cache of a token is split; beyond its KV heads it is replicated.

        The latent of MLA is one head, so every rank keeps all of it.
        """
        return 1 if self.model.mla is not None else min(self.tensor, self.model.kv_heads)

    @property
    def compute_flops(self) -> float:
        """Peak FLOP/s of one GPU for the linear layers. 4-bit weights are widened and multiplied in BF16."""
        fp8 = self.accelerator.fp8_flops
        return fp8 if self.weights is Precision.FP8 and fp8 is not None else self.accelerator.bf16_flops
