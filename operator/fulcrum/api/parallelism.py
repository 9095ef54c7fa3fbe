"""Spec, how one worker spreads over GPUs, and how many that are: the one place where they are counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api.amd import is_amd
from fulcrum.api.attention import compute_capability
from fulcrum.api.base import ApiStruct, Rules, rule
from fulcrum.api.names import Role


def gpus_of(*, tensor: int, pipeline: int, data: int) -> int:
    """Return the GPUs of one worker; on CPUs, the processes that compute. Whatever counts GPUs counts them by this."""
    return tensor * pipeline * data


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBackend:
    """How tokens reach the experts of other ranks and come back: a value of vLLM's `--all2all-backend`."""

    name: str
    only_role: Role | None = None
    """The only role whose workers it serves; None: every role."""
    accelerators: str | None = None
    """Pattern of the accelerators that have it; None: all but CPUs."""

    @property
    def refused_where(self) -> str:
        """CEL over a pool: it cannot serve there; empty where it always can."""
        unfit = []
        if self.only_role is not None:
            unfit.append(f"self.roles.exists(role, role != '{self.only_role}')")
        if self.accelerators is not None:
            unfit.append(f"!self.accelerator.matches('{self.accelerators}')")
        return " || ".join(unfit)


PLAIN_BACKEND: Final = "allgather_reducescatter"
"""Collectives of the usual library: every accelerator, network and role has them. vLLM's default."""
_AMD: Final = "^MI3"
_RACKS: Final = "^GB[23]"
"""Accelerators whose whole rack is one NVLink domain."""

EXPERT_BACKENDS: Final = (
    ExpertBackend(name=PLAIN_BACKEND),
    # vLLM turns CUDA graphs off with the high-throughput kernels (`config/compilation.py`), which decode steps need;
    # the low-latency ones take a bounded number of tokens a step into buffers of a fixed size.
    ExpertBackend(name="deepep_high_throughput", only_role=Role.PREFILL),
    ExpertBackend(name="deepep_low_latency", only_role=Role.DECODE),
    ExpertBackend(name="deepep_v2"),
    ExpertBackend(name="nixl_ep"),
    ExpertBackend(name="moonep"),
    ExpertBackend(name="mori_high_throughput", only_role=Role.PREFILL, accelerators=_AMD),
    ExpertBackend(name="mori_low_latency", only_role=Role.DECODE, accelerators=_AMD),
    ExpertBackend(name="flashinfer_nvlink_one_sided", accelerators=_RACKS),
    ExpertBackend(name="flashinfer_nvlink_two_sided", accelerators=_RACKS),
)
"""Those of vLLM 0.32 (`config/parallel.py`), without names that it takes and does not serve (`naive`, `pplx`), and
without `passthrough`, which its command line refuses."""

_KERNELS_FROM: Final = (9, 0)
"""Compute capability from which on DeepEP has its kernels between machines."""


class Parallelism(ApiStruct, frozen=True, kw_only=True):
    """How one worker spreads over GPUs: tensor * pipeline * data of them."""

    # No powers of two are asked for: tensor 3 is right for models with 96 heads.
    tensor: Annotated[
        int, Meta(ge=1, le=16, description="Tensor parallel size: GPUs that share each layer; divides the heads.")
    ] = 1
    pipeline: Annotated[int, Meta(ge=1, le=16, description="Pipeline parallel size: stages of consecutive layers.")] = 1
    data: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Data parallel size: ranks of one worker, each with tensor * pipeline GPUs, its own requests "
            "and its own KV cache, which step together. For mixtures of experts, whose experts are then shared over "
            "tensor * data GPUs; a dense model is served better by more workers.",
        ),
    ] = 1
    experts: Annotated[
        bool,
        Meta(
            description="Expert parallelism: each GPU holds whole experts of a mixture of experts, and tokens travel "
            "to them. Without it each GPU holds a part of every expert."
        ),
    ] = False
    expert_backend: Annotated[
        str | None,
        Meta(
            description="How tokens travel to experts (vLLM's --all2all-backend). Default where data is above 1: "
            "allgather_reducescatter, but in pools that only prefill deepep_high_throughput, and in pools that only "
            "decode deepep_low_latency; on GPUs of AMD mori_high_throughput and mori_low_latency. These need rdma, "
            "except to prefill on one node, and Hopper or newer without being a rack (GB200).",
            extra_json_schema={"enum": [each.name for each in EXPERT_BACKENDS]},
        ),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "!has(self.expertBackend) || self.experts",
            "parallelism.expertBackend: without experts no token travels to one; set experts: true, or remove it",
        ),
    )

    @property
    def gpus(self) -> int:
        """GPUs of one worker; on CPUs, its engine processes."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=self.data)

    def backend(self, *, accelerator: str, only_role: Role | None, nodes: int, rdma: bool) -> str | None:
        """Return vLLM's `--all2all-backend` of such workers; None where no token travels to another rank's experts.

        `only_role` is the only one that they take; None: several.
        """
        if self.expert_backend is not None or not self.experts or self.data == 1:
            return self.expert_backend
        library = "mori" if is_amd(accelerator) else "deepep"
        # On racks vLLM's FlashInfer kernels serve some weights only: a choice for those who know theirs.
        able = library == "mori" or (compute_capability(accelerator) or (0, 0)) >= _KERNELS_FROM
        able &= re.match(_RACKS, accelerator) is None
        # Prefills of one node go over NVLink; the low-latency kernels open RDMA devices even there.
        if able and only_role is Role.PREFILL and (rdma or nodes == 1):
            return f"{library}_high_throughput"
        if able and only_role is Role.DECODE and rdma:
            return f"{library}_low_latency"
        return PLAIN_BACKEND


def backend_rules() -> Rules:
    """Return the rules of a pool about its `expertBackend`."""
    said = "has(self.parallelism.expertBackend) && self.parallelism.expertBackend"
    instead = f"remove it for the default, or use {PLAIN_BACKEND}"
    bound = [each for each in EXPERT_BACKENDS if each.refused_where]
    found = [
        rule(
            f"!({said} != '{PLAIN_BACKEND}' && self.accelerator == 'cpu')",
            f"parallelism.expertBackend: on CPUs there is only {PLAIN_BACKEND}",
        )
    ]
    for only, where in dict.fromkeys((each.only_role, each.refused_where) for each in bound):
        names = [each.name for each in bound if each.refused_where == where]
        bounds = [] if only is None else [f"in pools whose only role is {only}"]
        if _AMD in where:
            bounds.append("on GPUs of AMD")
        if _RACKS in where:
            bounds.append("where a rack is one NVLink domain (GB200, GB300)")
        listed = ", ".join(f"'{name}'" for name in names)
        found.append(
            rule(
                f"!({said} in [{listed}] && ({where}))",
                f"parallelism.expertBackend: {', '.join(names)}: only {' and '.join(bounds)}; {instead}",
            )
        )
    return tuple(found)
