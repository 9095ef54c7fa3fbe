"""Has vLLM's ranks on CPUs exchange tokens for their experts: its CPU build lacks two parts of that (0.32.0).

Its communicator (`CpuCommunicator`) cannot gather tokens of ranks with unlike counts, and its experts
(`CPUUnquantizedExperts`) take the ids of all experts for those of the rank's own. On a GPU nothing is missing.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

ENV_EXPERTS_ON_CPU: Final = "FULCRUM_WORKER_EXPERTS_ON_CPU"
"""Set where ranks on CPUs share experts."""


def share_experts_on_cpu() -> None:
    """Add what is missing to this process's vLLM. Raises ImportError, AttributeError where it differs."""
    communicator: Any = importlib.import_module("vllm.distributed.device_communicators.cpu_communicator")
    base: Any = importlib.import_module("vllm.distributed.device_communicators.base_device_communicator")
    target, plain = communicator.CpuCommunicator, base.DeviceCommunicatorBase
    for name, own in (("all_gatherv", _all_gatherv), ("reduce_scatterv", _reduce_scatterv)):
        if getattr(target, name) is getattr(plain, name):  # raises NotImplementedError
            setattr(target, name, own)
    experts: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.experts.cpu_moe")
    _map_experts(experts.CPUUnquantizedExperts)


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Tokens of every rank in their order. Gloo gathers like shapes only: all are as long as the longest."""
    import torch

    if dim != 0:
        raise NotImplementedError("only dim 0 is gathered")
    if isinstance(input_, list):
        return [_all_gatherv(self, each, dim, sizes) for each in input_]
    if sizes is None or len(set(sizes)) == 1:
        return self.all_gather(input_, 0)
    longest = max(sizes)
    padded = torch.zeros((longest, *input_.shape[1:]), dtype=input_.dtype, device=input_.device)
    padded[: input_.shape[0]] = input_
    gathered = self.all_gather(padded, 0)
    return torch.cat([gathered[rank * longest : rank * longest + size] for rank, size in enumerate(sizes)])


def _reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """The rank's own tokens, summed over all ranks. Gloo has no such call for unlike counts: it sums all tokens."""
    if dim != 0:
        raise NotImplementedError("only dim 0 is scattered")
    counts = sizes or [input_.shape[0] // self.world_size] * self.world_size
    summed = self.all_reduce(input_.clone())
    begin = sum(counts[: self.rank_in_group])
    return summed[begin : begin + counts[self.rank_in_group]].contiguous()


def _map_experts(experts: Any) -> None:
    apply = experts.apply

    def apply_own(self: Any, *args: Any, **kwargs: Any) -> None:
        expert_map = kwargs["expert_map"]
        if expert_map is not None:
            own = expert_map[kwargs["topk_ids"].long()]
            here = own >= 0
            # An expert of another rank: any of this rank's own, with the weight 0.
            kwargs["topk_ids"] = own.clamp(min=0).to(kwargs["topk_ids"].dtype)
            kwargs["topk_weights"] = kwargs["topk_weights"] * here
        apply(self, *args, **kwargs)

    experts.apply = apply_own
