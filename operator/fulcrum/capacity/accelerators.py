"""What accelerators can do, from their vendors' data sheets (dense rates, without sparsity)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_TERA: Final = 1e12
_GIGA: Final = 1e9
_MEBI: Final = 2**20


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
    """One direction; None: GPUs of a machine talk over PCIe."""
    pcie_bytes_per_second: float
    """One direction."""
    network_bytes_per_second: float
    """What the usual machine gives each GPU towards other machines, one direction."""
    per_machine: int = 8

    @property
    def local_bytes_per_second(self) -> float:
        """Fastest link to a neighbour in the same machine, one direction."""
        return self.nvlink_bytes_per_second or self.pcie_bytes_per_second


def _gpu(
    name: str,
    *,
    bf16_tera: float,
    fp8_tera: float | None,
    memory_mebi: int,
    memory_giga: float,
    nvlink_giga: float | None,
    pcie_giga: float,
    network_giga: float,
) -> Accelerator:
    return Accelerator(
        name=name,
        bf16_flops=bf16_tera * _TERA,
        fp8_flops=None if fp8_tera is None else fp8_tera * _TERA,
        memory_bytes=memory_mebi * _MEBI,
        memory_bytes_per_second=memory_giga * _GIGA,
        nvlink_bytes_per_second=None if nvlink_giga is None else nvlink_giga * _GIGA,
        pcie_bytes_per_second=pcie_giga * _GIGA,
        network_bytes_per_second=network_giga * _GIGA,
    )


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
    per_machine=1,
)

ACCELERATORS: Final = MappingProxyType(
    {
        each.name: each
        for each in (
            _gpu(
                "A100-SXM-80GB",
                bf16_tera=312,
                fp8_tera=None,
                memory_mebi=81920,
                memory_giga=2039,
                nvlink_giga=300,
                pcie_giga=32,
                network_giga=25,
            ),
            _gpu(
                "H100-SXM-80GB",
                bf16_tera=989,
                fp8_tera=1979,
                memory_mebi=81559,
                memory_giga=3350,
                nvlink_giga=450,
                pcie_giga=64,
                network_giga=50,
            ),
            _gpu(
                "H200-SXM-141GB",
                bf16_tera=989,
                fp8_tera=1979,
                memory_mebi=143771,
                memory_giga=4800,
                nvlink_giga=450,
                pcie_giga=64,
                network_giga=50,
            ),
            _gpu(
                "B200-SXM-180GB",
                bf16_tera=2250,
                fp8_tera=4500,
                memory_mebi=183359,
                memory_giga=7700,
                nvlink_giga=900,
                pcie_giga=64,
                network_giga=50,
            ),
            _gpu(
                "L40S-48GB",
                bf16_tera=362,
                fp8_tera=733,
                memory_mebi=46068,
                memory_giga=864,
                nvlink_giga=None,
                pcie_giga=32,
                network_giga=12.5,
            ),
            _gpu(
                "L40-48GB",
                bf16_tera=181,
                fp8_tera=362,
                memory_mebi=46068,
                memory_giga=864,
                nvlink_giga=None,
                pcie_giga=32,
                network_giga=12.5,
            ),
            _gpu(
                # Bridges join pairs only, so a worker of more than two GPUs is bound by PCIe.
                "A6000-48GB",
                bf16_tera=155,
                fp8_tera=None,
                memory_mebi=49140,
                memory_giga=768,
                nvlink_giga=None,
                pcie_giga=32,
                network_giga=12.5,
            ),
            _gpu(
                "A10-24GB",
                bf16_tera=125,
                fp8_tera=None,
                memory_mebi=23028,
                memory_giga=600,
                nvlink_giga=None,
                pcie_giga=32,
                network_giga=3.125,
            ),
            _gpu(
                "L4-24GB",
                bf16_tera=121,
                fp8_tera=242,
                memory_mebi=23034,
                memory_giga=300,
                nvlink_giga=None,
                pcie_giga=32,
                network_giga=3.125,
            ),
            CPU,
        )
    }
)
"""By the name that a pool's `accelerator` has."""

_NOISE: Final = re.compile(r"\b(nvidia|sxm\d?|\d+gb|hbm\d?e?|tesla|gpu)\b")
_CHIP: Final = {"a10g": "a10", "rtx-a6000": "a6000", "x86": "cpu", "x86-64": "cpu", "arm64": "cpu"}


def _chip(name: str) -> str:
    words = _NOISE.sub(" ", name.lower().replace("_", "-").replace("-", " ")).split()
    chip = "-".join(words)
    return _CHIP.get(chip, chip)


_BY_CHIP: Final = {_chip(name): each for name, each in ACCELERATORS.items()}
_SIZE: Final = re.compile(r"\b(\d+)gb\b")


def accelerator(name: str) -> Accelerator:
    """The accelerator under its name here, its chip (`H100`), or what node labels call it (`NVIDIA-H100-80GB-HBM3`).

    Raises:
        UnknownAcceleratorError: not in the table; other forms of a chip are not either (`H100-PCIE-80GB`).
    """
    found = ACCELERATORS.get(name) or _BY_CHIP.get(_chip(name))
    if found is None:
        raise UnknownAcceleratorError(name)
    size, known_size = _SIZE.search(name.lower().replace("_", "-")), _SIZE.search(found.name.lower())
    if size and known_size and size[1] != known_size[1] and (size[1], known_size[1]) not in _SAME_SIZE:
        raise UnknownAcceleratorError(name)
    return found


_SAME_SIZE: Final = {("192", "180"), ("46", "48")}
"""(as written, here): one part is sold under both."""
