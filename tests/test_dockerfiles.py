"""Both images build from what their Dockerfiles copy: the build step runs here, without a Docker engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CONTROL_PLANE = ROOT / "Dockerfile"
WORKER = ROOT / "worker_image" / "Dockerfile"
_STARTED = "fulcrum.controller.run, fulcrum.gateway.app, fulcrum.cli.operator, fulcrum.cli.gateway, fulcrum.cli.up"
"""What the control plane's image starts (`fulcrum operator`, `fulcrum gateway`, and the local Kubernetes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The first stage of a Dockerfile, which builds Fulcrum."""

    copies: tuple[tuple[tuple[str, ...], str], ...]
    """Sources (relative to the repository) and destination (relative to the working directory)."""
    build: tuple[str, ...]
    """The command that builds the wheel or installs it."""
    compile: str
    """FULCRUM_COMPILE of that command."""


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0].upper(), line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def build_stage(dockerfile: Path) -> Stage:
    found = instructions(dockerfile)
    stage = found[: [name for name, _ in found].index("FROM", 1)]
    copies = [shlex.split(text) for name, text in stage if name == "COPY"]
    (command,) = (text for name, text in stage if name == "RUN" and re.search(r"pip (wheel|install) .* \.$", text))
    words = shlex.split(command)
    return Stage(
        copies=tuple((tuple(words[:-1]), words[-1]) for words in copies),
        build=tuple(word for word in words if "=" not in word or word.startswith("-")),
        compile=next((word.partition("=")[2] for word in words if word.startswith("FULCRUM_COMPILE=")), "auto"),
    )


def copy_context(stage: Stage, folder: Path) -> None:
    """Copy what the stage copies, as COPY does: the content of a folder, or a file."""
    for sources, destination in stage.copies:
        for source in sources:
            origin, target = ROOT / source, folder / destination
            if origin.is_dir():
                shutil.copytree(
                    origin, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.so")
                )
            else:
                target = target / origin.name if destination.endswith("/") else target
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, target)


def build(dockerfile: Path, folder: Path, *, compiled: str) -> Path:
    """Run the build step in `folder` with what is installed here (offline); returns where the wheel is installed."""
    stage = build_stage(dockerfile)
    context, target = folder / "context", folder / "installed"
    copy_context(stage, context)
    constraints = [context / word for word in stage.build if word.endswith(".lock")]
    assert all(path.is_file() for path in constraints)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "FULCRUM_COMPILE": compiled, "HOME": str(folder)}
    for command in (
        [*pip, "wheel", *offline, "--wheel-dir", str(folder / "wheels"), "."],
        [
            *pip,
            "install",
            *offline,
            "--target",
            str(target),
            "--find-links",
            str(folder / "wheels"),
            "fulcrum-operator",
        ],
    ):
        done = subprocess.run(
            command, cwd=context, env=environment, capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return target


def imports(installed: Path, modules: str) -> None:
    program = f"import {modules}, fulcrum; print(fulcrum.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed)), "imported from the checkout instead"


def test_the_worker_image_builds_and_imports_its_agent(tmp_path: Path) -> None:
    (check,) = re.findall(r'python3 -c "import ([^"]*fulcrum_worker[^"]*)"', WORKER.read_text())
    stage = build_stage(WORKER)
    assert stage.compile == "0", "the wheel is built by another Python than the one that runs it"
    installed = build(WORKER, tmp_path, compiled=stage.compile)
    imports(installed, check)
    entry = json.loads(next(text for name, text in reversed(instructions(WORKER)) if name == "ENTRYPOINT"))
    assert (installed / entry[-1] / "__main__.py").is_file()


def test_the_control_planes_image_builds_and_imports_what_it_starts(tmp_path: Path) -> None:
    installed = build(CONTROL_PLANE, tmp_path, compiled="0")
    imports(installed, _STARTED)
    assert (installed / "fulcrum" / "_install" / "crds").is_dir()
    assert (installed / "fulcrum" / "_install" / "manifests" / "rbac").is_dir()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_control_planes_image_compiles_its_request_path(tmp_path: Path) -> None:
    stage = build_stage(CONTROL_PLANE)
    assert stage.compile == "1"
    installed = build(CONTROL_PLANE, tmp_path, compiled=stage.compile)
    assert list((installed / "fulcrum" / "gateway" / "http").glob("connection.*.so"))
    imports(installed, _STARTED)


@pytest.mark.parametrize("dockerfile", [CONTROL_PLANE, WORKER], ids=["control plane", "worker"])
def test_the_build_context_has_what_is_copied(dockerfile: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for sources, _ in build_stage(dockerfile).copies for source in sources}
    assert {source for source in copied if not any(f"{source}/".startswith(f"{path}/") for path in allowed)} == set()


@pytest.mark.parametrize("dockerfile", [CONTROL_PLANE, WORKER], ids=["control plane", "worker"])
def test_hadolint_has_nothing_to_say(dockerfile: Path) -> None:
    done = subprocess.run([BIN / "hadolint", dockerfile], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
