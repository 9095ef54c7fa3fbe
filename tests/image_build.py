"""The build steps of our Dockerfiles, run here without a Docker engine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.machine import deadline_seconds

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CONTROL_PLANE = ROOT / "Dockerfile"
WORKER = ROOT / "worker_image" / "Dockerfile"
ROCM_WORKER = ROOT / "worker_image" / "Dockerfile.rocm"
STARTED = "fulcrum.controller.run, fulcrum.gateway.app, fulcrum.cli.operator, fulcrum.cli.gateway, fulcrum.cli.up"
"""What the image starts (`fulcrum operator`, `fulcrum gateway`), and a command that says what it lacks (`up`)."""


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
    begin, end, *_ = (place for place, (name, _) in enumerate(found) if name == "FROM")
    stage = found[begin:end]
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
            command,
            cwd=context,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline_seconds(900),
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
        timeout=deadline_seconds(240),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed)), "imported from the checkout instead"
