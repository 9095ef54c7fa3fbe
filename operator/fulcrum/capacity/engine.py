"""One engine on its GPUs: what is loaded, in which format, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fulcrum.api.parallelism import PLAIN_BACKEND, gpus_of
from fulcrum.capacity.accelerators import MEMORY_UTILIZATION, Accelerator, usual_limits
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision

DENSE: Final = (
    "is dense: it has no experts to share over ranks of data parallel. Raise the number of workers, which serve it "
    "better apart, and leave parallelism.data at 1 and parallelism.experts at false"
)


class EngineShapeError(ValueError):
    """A model, accelerator and parallelism that cannot go together. Says what can be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """A model on `tensor * pipeline * data` accelerators.

    Raises:
        EngineShapeError: the parallelism does not fit the model.
    """

    model: ModelConfig
    accelerator: Accelerator
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    """Ranks that each have their own requests and KV cache, and share the experts of a mixture of experts."""
    experts: bool = False
    """Whole experts are on each GPU; without, a part of every expert."""
    expert_backend: str = PLAIN_BACKEND
    """How tokens travel to the experts of other ranks (vLLM's `--all2all-backend`)."""
    weights: Precision = Precision.BF16
    kv: Precision = Precision.FP8
    max_batch: int = 0
    """vLLM's `max_num_seqs`; 0: its default on the accelerator, which then stands here."""
    max_batched_tokens: int = 0
    """vLLM's `max_num_batched_tokens`; 0 as above."""
    memory_utilization: float = MEMORY_UTILIZATION
    """vLLM's `gpu_memory_utilization`."""

    def __post_init__(self) -> None:
        """Fills in defaults and refuses what no engine can run."""
        model = self.model
        for name, usual in zip(("max_batched_tokens", "max_batch"), usual_limits(self.accelerator), strict=True):
            object.__setattr__(self, name, getattr(self, name) or usual)
        if self.tensor < 1 or self.pipeline < 1 or self.data < 1:
            raise EngineShapeError("tensor, pipeline and data parallelism must be at least 1")
        if model.moe is None and (self.data > 1 or self.experts):
            raise EngineShapeError(f"{model.name} {DENSE}")
        if model.heads % self.tensor:
            raise EngineShapeError(
                f"tensor parallelism {self.tensor} does not divide the {model.heads} attention heads of {model.name}"
            )
        if self.pipeline > model.layers:
            raise EngineShapeError(
                f"{self.pipeline} pipeline stages need as many layers; {model.name} has {model.layers}"
            )
        if self.kv.bytes < 1:
            raise EngineShapeError("the KV cache is kept in bf16 or fp8")
        if not 0 < self.memory_utilization <= 1:
            raise EngineShapeError("gpu_memory_utilization must be above 0 and at most 1")
        if self.max_batch < 1 or self.max_batched_tokens < 1:
            raise EngineShapeError("max_num_seqs and max_num_batched_tokens must be at least 1")

    @property
    def gpus(self) -> int:
        """GPUs of the whole engine."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)

    @property
    def expert_gpus(self) -> int:
        """GPUs that share the experts of a layer."""
        return gpus_of(tensor=self.tensor, pipeline=1, data=self.data)

    @property
    def rank_gpus(self) -> int:
        """GPUs of one rank of data parallel: they hold all weights but those of experts."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=1)

    @property
    def kv_split(self) -> int:
        """Over how many tensor-parallel ranks the cache of a token is split; beyond its KV heads it is replicated.

        The latent of MLA is one head, so every rank keeps all of it.
        """
        return 1 if self.model.mla is not None else min(self.tensor, self.model.kv_heads)

    @property
    def compute_flops(self) -> float:
        """Peak FLOP/s of one GPU for the linear layers; formats that it does not compute in are widened to BF16."""
        gpu = self.accelerator
        own = {Precision.FP8: gpu.fp8_flops, Precision.FP4: gpu.fp4_flops}.get(self.weights)
        return own or gpu.bf16_flops

    def require_startable(self) -> None:
        """Refuse what vLLM ends its start for, though the dimensions would go together.

        Raises:
            EngineShapeError: a rank's part of the feed-forward layers is no whole number of blocks of FP8 scales.
        """
        block, model = self.model.scale_block, self.model
        if not block or self.weights is not Precision.FP8 or self.experts:
            return
        width = model.moe.expert_intermediate if model.moe is not None else model.intermediate
        parts = self.expert_gpus
        if width // parts % block:
            fitting = [each for each in (1, 2, 4, 8, 16) if width // each % block == 0]
            split = "tensor parallelism" if self.data == 1 else "tensor * data"
            raise EngineShapeError(
                f"{model.name} has FP8 scales for blocks of {block}, and {split} {parts} leaves {width // parts} of "
                f"{width} columns to each GPU: vLLM ends its start. Use {split} {' or '.join(map(str, fitting))}, or "
                "expert parallelism (parallelism.experts)"
            )
