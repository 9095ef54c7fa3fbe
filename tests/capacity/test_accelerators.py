"""Names of accelerators, as people and node labels write them."""

from __future__ import annotations

import pytest

from fulcrum.capacity.accelerators import ACCELERATORS, UnknownAcceleratorError, accelerator


@pytest.mark.parametrize("name", sorted(ACCELERATORS))
def test_every_name_is_its_own(name: str) -> None:
    assert accelerator(name).name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100-SXM-80GB"),
        ("h100_sxm", "H100-SXM-80GB"),
        ("h100-80gb", "H100-SXM-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 SXM5 80GB", "H100-SXM-80GB"),
        ("a100-80gb", "A100-SXM-80GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA-H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("NVIDIA-B200-192GB", "B200-SXM-180GB"),
        ("L40S", "L40S-48GB"),
        ("NVIDIA-L40S", "L40S-48GB"),
        ("A10G", "A10-24GB"),
        ("L40", "L40-48GB"),
        ("NVIDIA-RTX-A6000", "A6000-48GB"),
        ("nvidia-l4", "L4-24GB"),
        ("NVIDIA-A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA-H100-PCIe", "H100-PCIE-80GB"),
        ("NVIDIA-H100-NVL", "H100-NVL-94GB"),
        ("NVIDIA-H20", "H20-SXM-96GB"),
        ("H800", "H800-SXM-80GB"),
        ("NVIDIA-GH200-480GB", "GH200-96GB"),
        ("NVIDIA-GB200", "GB200-186GB"),
        ("NVIDIA-B300-SXM6-AC", "B300-SXM-288GB"),
        ("AMD_Instinct_MI300X_OAM", "MI300X-192GB"),
        ("MI325X", "MI325X-256GB"),
        ("CPU", "cpu"),
    ],
)
def test_other_spellings(written: str, name: str) -> None:
    assert accelerator(written).name == name


@pytest.mark.parametrize("written", ["TPU-v5e", "", "A100-PCIE-40GB", "H100-SXM5-64GB", "L20", "TPU-MIG-1g.10gb"])
def test_an_unknown_name_lists_the_known_ones(written: str) -> None:
    with pytest.raises(UnknownAcceleratorError, match=r"H100-SXM-80GB.*cpu"):
        accelerator(written)


@pytest.mark.parametrize(
    "written", ["TPU-MIG-1g.10gb", "H100-MIG-0g.10gb", "H100-MIG-1g.0gb", "H100-MIG-9g.80gb", "H100-MIG-7g.999gb"]
)
def test_a_slice_that_cannot_be_is_unknown_by_the_name_that_was_given(written: str) -> None:
    with pytest.raises(UnknownAcceleratorError, match=f"'{written}' is not known"):
        accelerator(written)


@pytest.mark.parametrize(
    ("written", "whole", "compute", "gibibytes", "bandwidth"),
    [
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "H100-SXM-80GB", 3 / 7, 40, 4 / 8),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100-SXM-80GB", 1 / 7, 10, 1 / 8),
        ("NVIDIA-A100-SXM4-80GB-MIG-7g.80gb", "A100-SXM-80GB", 1.0, 80, 1.0),
        ("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", "A100-SXM-40GB", 2 / 7, 10, 2 / 8),
    ],
)
def test_a_slice_is_an_accelerator_of_its_own(
    written: str, whole: str, compute: float, gibibytes: int, bandwidth: float
) -> None:
    part, of = accelerator(written), accelerator(whole)
    assert part.name == written
    assert part.bf16_flops == pytest.approx(of.bf16_flops * compute)
    assert part.memory_bytes == pytest.approx(gibibytes * 2**30, rel=0.05)
    assert part.memory_bytes_per_second == pytest.approx(of.memory_bytes_per_second * bandwidth)
    assert part.nvlink_bytes_per_second is None
    assert part.per_machine == 1
