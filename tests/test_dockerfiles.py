"""Both images build from what their Dockerfiles copy: the build step runs here, without a Docker engine."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.image_build import (
    BIN,
    CONTROL_PLANE,
    ROCM_WORKER,
    ROOT,
    STARTED,
    WORKER,
    build,
    build_stage,
    copy_context,
    imports,
    instructions,
)
from tests.machine import deadline_seconds

from fulcrum.cli.shipped import SIMULATED


def test_the_worker_image_builds_and_imports_its_agent(tmp_path: Path) -> None:
    (check,) = re.findall(r'python3 -c "import ([^"]*fulcrum_worker[^"]*)"', WORKER.read_text())
    stage = build_stage(WORKER)
    assert stage.compile == "0", "the wheel is built by another Python than the one that runs it"
    installed = build(WORKER, tmp_path, compiled=stage.compile)
    imports(installed, check)
    entry = json.loads(next(text for name, text in reversed(instructions(WORKER)) if name == "ENTRYPOINT"))
    assert (installed / entry[-1] / "__main__.py").is_file()


def test_both_workers_are_built_and_run_alike() -> None:
    """They differ in what they are built on, in where NIXL comes from, and in two caches."""
    cuda, rocm = (
        [(name, text.replace("ROCM_IMAGE", "VLLM_IMAGE")) for name, text in instructions(dockerfile)]
        for dockerfile in (WORKER, ROCM_WORKER)
    )
    unlike = {name for name, text in {*cuda} ^ {*rocm}}
    assert [name for name, _ in cuda] == [name for name, _ in rocm]
    assert unlike == {"ARG", "RUN", "ENV"}
    caches = [dict(re.findall(r"(\w+)=(\S+)", text)) for found in (cuda, rocm) for name, text in found if name == "ENV"]
    assert {name for name, _ in caches[0].items() ^ caches[1].items()} == {
        "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH", "MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR",
    }  # fmt: skip
    (steps, of_rocm) = ([text for name, text in found if name == "RUN"][1] for found in (cuda, rocm))
    checked = re.compile(r"python3 -c \"import numpy.*")
    assert checked.findall(steps) == checked.findall(of_rocm)


def test_the_control_planes_image_builds_and_imports_what_it_starts(tmp_path: Path) -> None:
    installed = build(CONTROL_PLANE, tmp_path, compiled="0")
    imports(installed, STARTED)
    assert (installed / "fulcrum" / "_install" / "crds").is_dir()
    assert (installed / "fulcrum" / "_install" / "manifests" / "rbac").is_dir()
    assert (installed / "fulcrum" / "_install" / SIMULATED).is_file()


@pytest.mark.integration
@pytest.mark.timeout(1500)
def test_the_control_planes_image_compiles_its_request_path(compiled: Path) -> None:
    assert build_stage(CONTROL_PLANE).compile == "1"
    assert list((compiled / "fulcrum" / "gateway" / "http").glob("connection.*.so"))
    imports(compiled, STARTED)


def test_a_folder_made_from_the_same_sources_is_not_compiled_again(tmp_path: Path) -> None:
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    (tmp_path / "stamp").write_text(build["_sources_digest"]())
    (tmp_path / "made_before.so").touch()
    command = [sys.executable, ROOT / "hatch_build.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_seconds(60))
    assert done.stdout.split() == ["made_before.so"]


@pytest.mark.parametrize(
    "dockerfile", [CONTROL_PLANE, WORKER, ROCM_WORKER], ids=["control plane", "worker", "worker for ROCm"]
)
def test_the_build_context_has_what_is_copied(dockerfile: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for sources, _ in build_stage(dockerfile).copies for source in sources}
    assert {source for source in copied if not any(f"{source}/".startswith(f"{path}/") for path in allowed)} == set()


@pytest.mark.parametrize(
    "dockerfile", [CONTROL_PLANE, WORKER, ROCM_WORKER], ids=["control plane", "worker", "worker for ROCm"]
)
def test_no_image_has_the_local_kubernetes(dockerfile: Path, tmp_path: Path) -> None:
    copy_context(build_stage(dockerfile), tmp_path)
    assert (tmp_path / "operator" / "fulcrum").is_dir()
    assert not list(tmp_path.rglob("fulcrum_local*"))


@pytest.mark.parametrize(
    "dockerfile", [CONTROL_PLANE, WORKER, ROCM_WORKER], ids=["control plane", "worker", "worker for ROCm"]
)
def test_hadolint_has_nothing_to_say(dockerfile: Path) -> None:
    done = subprocess.run(
        [BIN / "hadolint", dockerfile], capture_output=True, text=True, check=False, timeout=deadline_seconds(60)
    )
    assert done.returncode == 0, done.stdout + done.stderr
