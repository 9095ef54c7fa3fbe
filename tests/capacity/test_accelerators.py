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
        ("CPU", "cpu"),
    ],
)
def test_other_spellings(written: str, name: str) -> None:
    assert accelerator(written).name == name


@pytest.mark.parametrize("written", ["TPU-v5e", "", "H100-PCIE-80GB", "A100-SXM4-40GB", "H800", "L20"])
def test_an_unknown_name_lists_the_known_ones(written: str) -> None:
    with pytest.raises(UnknownAcceleratorError, match=r"H100-SXM-80GB.*cpu"):
        accelerator(written)
