"""What accelerators can do, from their vendors' data sheets (dense rates, without sparsity)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

_TERA: Final = 1e12
_GIGA: Final = 1e9
_MEBI: Final = 2**20

LINK_EFFICIENCY: Final = 0.7
"""Share of a link's rate that large RDMA reads reach. A guess."""
TCP_BYTES_PER_SECOND: Final = 0.5e9
"""What NIXL moves for one GPU over TCP, before any transfer was seen. A guess: one connection of UCX, and a copy of
each block through host memory at both ends."""
COLLATED_TOKENS: Final = 128
"""Tokens that one transfer descriptor should cover (AI Systems Performance Engineering, ch. 18)."""
DESCRIPTOR_SECONDS: Final = (0.020 - 0.008) / (7500 / 16 - 7500 / COLLATED_TOKENS)
"""Cost of one descriptor: the book's 7,500 tokens take 20 ms in blocks of 16 and 8 ms in blocks of 128."""
TRANSFER_BASE_SECONDS: Final = 2e-3
"""Handing over one request: answer of the prefill leg, block look-up, notification. A guess; the first handshake of a
pair of engines is extra."""
RUNTIME_BYTES: Final = int(0.75 * 2**30)
"""CUDA context, kernels and allocator slack of one GPU."""
COLLECTIVE_BYTES: Final = int(0.75 * 2**30)
"""NCCL buffers of one GPU of a group, and CUDA graphs."""
CPU_KV_BYTES: Final = 2**30
"""What a worker on a CPU takes unless `engine.kvCache.memory` says otherwise (`api.worker.KvCacheConfig`)."""
MEMORY_UTILIZATION: Final = 0.92
"""vLLM's default of `gpu_memory_utilization`."""


class UnknownAcceleratorError(LookupError):
    """A name that is not in the table."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the accelerator {name!r} is not known; known are {', '.join(ACCELERATORS)}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU, or the part of a machine's CPU that a worker gets."""

    name: str
    bf16_flops: float
    """Peak FLOP/s in BF16."""
    fp8_flops: float | None
    """Peak FLOP/s in FP8; None: computes in BF16 whatever the weights are stored in."""
    memory_bytes: int
    """What the driver shows."""
    memory_bytes_per_second: float
    nvlink_bytes_per_second: float | None
    """One direction, NVLink or xGMI; None: GPUs of a machine talk over PCIe."""
    pcie_bytes_per_second: float
    """To the host's memory, one direction (C2C on GH200 and GB200)."""
    network_bytes_per_second: float
    """What the usual machine gives each GPU towards other machines, one direction."""
    fp4_flops: float | None = None
    """Peak FLOP/s in block-scaled FP4; None: such weights are widened and multiplied in BF16."""
    expert_bytes_per_second: float | None = None
    """Most that kernels read of the weights of experts, which come in small tiles: their rate follows the number of
    compute units. None: as fast as other weights. H100 and H200 read 128 experts with a ratio of 1.12 and not of 1.43
    (`benchmarks/gpu_blocks.py`), and 627 measured servers say the same."""
    serving_seconds: float = 0.030
    """What serving adds to a prefill beside its kernels: scheduling, launches that no graph covers, the way to the
    client. Measured: 25 to 40 ms on Hopper, about 70 on B200."""
    joined_directly: int = 8
    """GPUs of a machine whose all-reduce does not pass root complexes that others use at the same time."""
    shared_pcie_factor: float = 7.0
    """By how much longer all-reduces of more GPUs take: 5 to 10 times on servers with L40S and A6000, whose GPUs share
    root complexes, and for which vLLM has no all-reduce of its own (`custom_all_reduce.py`)."""
    per_machine: int = 8

    @property
    def local_bytes_per_second(self) -> float:
        """Fastest link to a neighbour in the same machine, one direction."""
        return self.nvlink_bytes_per_second or self.pcie_bytes_per_second


def _gpu(
    name: str,
    tera_flops: tuple[float, float | None, float | None],
    memory: tuple[int, float],
    links: tuple[float | None, float, float],
    *,
    expert_giga: float | None = None,
    serving_seconds: float = 0.030,
    per_machine: int = 8,
) -> Accelerator:
    bf16, fp8, fp4 = tera_flops
    (mebi, memory_giga), (nvlink, pcie, network) = memory, links
    return Accelerator(
        name=name,
        bf16_flops=bf16 * _TERA,
        fp8_flops=None if fp8 is None else fp8 * _TERA,
        fp4_flops=None if fp4 is None else fp4 * _TERA,
        memory_bytes=mebi * _MEBI,
        memory_bytes_per_second=memory_giga * _GIGA,
        nvlink_bytes_per_second=None if nvlink is None else nvlink * _GIGA,
        pcie_bytes_per_second=pcie * _GIGA,
        network_bytes_per_second=network * _GIGA,
        expert_bytes_per_second=None if expert_giga is None else expert_giga * _GIGA,
        serving_seconds=serving_seconds,
        joined_directly=per_machine if nvlink is not None else 2,
        per_machine=per_machine,
    )


_BLACKWELL_SERVING_SECONDS: Final = 0.070
"""Measured on B200; taken for its siblings."""


CPU: Final = Accelerator(
    # An order of magnitude for a few cores; how fast a CPU worker is comes from measuring it.
    name="cpu",
    bf16_flops=0.2 * _TERA,
    fp8_flops=None,
    memory_bytes=16 * 2**30,
    memory_bytes_per_second=20 * _GIGA,
    nvlink_bytes_per_second=None,
    pcie_bytes_per_second=10 * _GIGA,
    network_bytes_per_second=1.25 * _GIGA,
    serving_seconds=0.0,
    per_machine=1,
)

ACCELERATORS: Final = MappingProxyType(
    {
        each.name: each
        for each in (
            # name, TFLOP/s in BF16, FP8 and FP4, (MiB, GB/s) of memory, GB/s of NVLink or xGMI, PCIe and network
            _gpu("A100-SXM-80GB", (312, None, None), (81920, 2039), (300, 32, 25)),
            _gpu("H100-SXM-80GB", (989, 1979, None), (81559, 3350), (450, 64, 50)),
            _gpu("H200-SXM-141GB", (989, 1979, None), (143771, 4800), (450, 64, 50), expert_giga=3400),
            _gpu(
                "B200-SXM-180GB",
                (2250, 4500, 9000),
                (183359, 7700),
                (900, 64, 50),
                serving_seconds=_BLACKWELL_SERVING_SECONDS,
            ),
            _gpu("L40S-48GB", (362, 733, None), (46068, 864), (None, 32, 12.5)),
            _gpu("L40-48GB", (181, 362, None), (46068, 864), (None, 32, 12.5)),
            # Bridges join pairs only, so a worker of more than two GPUs is bound by PCIe.
            _gpu("A6000-48GB", (155, None, None), (49140, 768), (None, 32, 12.5)),
            _gpu("A10-24GB", (125, None, None), (23028, 600), (None, 32, 3.125)),
            _gpu("L4-24GB", (121, 242, None), (23034, 300), (None, 32, 3.125)),
            _gpu("A100-SXM-40GB", (312, None, None), (40960, 1555), (300, 32, 25)),
            _gpu("H100-PCIE-80GB", (756, 1513, None), (81559, 2039), (None, 64, 25)),
            _gpu("H100-NVL-94GB", (835, 1671, None), (95830, 3938), (None, 64, 25), expert_giga=3400),
            _gpu("H800-SXM-80GB", (989, 1979, None), (81559, 3350), (200, 64, 50)),
            _gpu("H20-SXM-96GB", (148, 296, None), (97871, 4000), (450, 64, 50), expert_giga=2000),
            _gpu("GH200-96GB", (989, 1979, None), (97871, 4000), (None, 450, 50), expert_giga=3400, per_machine=1),
            _gpu(
                "B300-SXM-288GB",
                (2250, 4500, 13500),
                (275040, 8000),
                (900, 128, 100),
                serving_seconds=_BLACKWELL_SERVING_SECONDS,
            ),
            _gpu(
                "GB200-186GB",
                (2500, 5000, 10000),
                (189471, 8000),
                (900, 450, 50),
                serving_seconds=_BLACKWELL_SERVING_SECONDS,
                per_machine=4,
            ),
            _gpu("MI300X-192GB", (1307, 2615, None), (196592, 5300), (448, 64, 50)),
            _gpu("MI325X-256GB", (1307, 2615, None), (262128, 6000), (448, 64, 50)),
            _gpu("MI355X-288GB", (2516, 5033, 10066), (294896, 8000), (538, 64, 50)),
            CPU,
        )
    }
)
"""By the name that a pool's `accelerator` has."""

_NOISE: Final = re.compile(r"\b(nvidia|amd|instinct|sxm\d?|\d+gb|hbm\d?e?|tesla|gpu|oam)\b")
_CHIP: Final = {
    "a10g": "a10", "rtx-a6000": "a6000", "x86": "cpu", "x86-64": "cpu", "arm64": "cpu", "h100l": "h100-nvl",
    "b300-ac": "b300",
}  # fmt: skip


def _words(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ")


def _chip(name: str) -> str:
    chip = "-".join(_NOISE.sub(" ", _words(name)).split())
    return _CHIP.get(chip, chip)


_BY_CHIP: Final[dict[str, list[Accelerator]]] = {}
for _each in ACCELERATORS.values():
    _BY_CHIP.setdefault(_chip(_each.name), []).append(_each)
_SIZE: Final = re.compile(r"\b(\d+)gb\b")
_MIG: Final = re.compile(r"\bmig (\d)g\.(\d+)gb\b.*$")
_SLICES: Final = 7
"""Compute slices of a GPU; its memory has eight."""
_LEAST_SLICE_GIB: Final = 5
"""Of the smallest slice, an eighth of an A100 with 40 GB."""
_SLICE_MEMORY: Final = 0.97
"""Share of the gigabytes in a slice's name that its driver shows."""


def accelerator(name: str) -> Accelerator:
    """The accelerator under its name here, its chip (`H100`), or what node labels call it (`NVIDIA-H100-80GB-HBM3`).

    A MIG slice (`NVIDIA-H100-80GB-HBM3-MIG-3g.40gb`) is an accelerator of its own.

    Raises:
        UnknownAcceleratorError: not in the table, with that size of memory.
    """
    if name in ACCELERATORS:
        return ACCELERATORS[name]
    words = _words(name)
    if (mig := _MIG.search(words)) is not None:
        compute, gigabytes = int(mig[1]), int(mig[2])
        try:
            whole = accelerator(words[: mig.start()])
        except UnknownAcceleratorError:
            raise UnknownAcceleratorError(name) from None
        if not 1 <= compute <= _SLICES or not _LEAST_SLICE_GIB <= gigabytes <= whole.memory_bytes / 2**30 + 1:
            raise UnknownAcceleratorError(name)
        return _slice(whole, name=name, compute=compute, gigabytes=gigabytes)
    alike = _BY_CHIP.get(_chip(name), [])
    size = _SIZE.search(words)
    for each in alike:
        known = _SIZE.search(_words(each.name))
        if size is None or known is None or size[1] == known[1] or (size[1], known[1]) in _SAME_SIZE:
            return each
    raise UnknownAcceleratorError(name)


def _slice(whole: Accelerator, *, name: str, compute: int, gigabytes: int) -> Accelerator:
    """Return a part of a GPU: slices of compute and of memory; it has no link to others but the host's."""
    part, memory_part = compute / _SLICES, min(1.0, max(1, round(8 * gigabytes * 2**30 / whole.memory_bytes)) / 8)
    return replace(
        whole,
        name=name,
        bf16_flops=whole.bf16_flops * part,
        fp8_flops=None if whole.fp8_flops is None else whole.fp8_flops * part,
        fp4_flops=None if whole.fp4_flops is None else whole.fp4_flops * part,
        expert_bytes_per_second=None if whole.expert_bytes_per_second is None else whole.expert_bytes_per_second * part,
        memory_bytes=int(gigabytes * 2**30 * _SLICE_MEMORY),
        memory_bytes_per_second=whole.memory_bytes_per_second * memory_part,
        nvlink_bytes_per_second=None,
        pcie_bytes_per_second=whole.pcie_bytes_per_second * part,
        network_bytes_per_second=whole.network_bytes_per_second * part,
        per_machine=1,
    )


_SAME_SIZE: Final = {
    ("192", "180"),
    ("46", "48"),
    ("480", "96"),
    ("270", "288"),
    ("268", "288"),
    ("189", "186"),
    ("93", "94"),
}
"""(as written, here): one part is sold under both."""


def usual_limits(of: Accelerator) -> tuple[int, int]:
    """vLLM's own `max_num_batched_tokens` and `max_num_seqs` of a server (`EngineArgs.get_batch_defaults`)."""
    if of is CPU:
        return 2048, 128
    if of.memory_bytes >= 160 * 2**30:
        return 16384, 1024
    if of.memory_bytes >= 70 * 2**30 and "a100" not in of.name.lower():
        return 8192, 1024
    return 2048, 256
