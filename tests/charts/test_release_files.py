"""What a release consists of has one version, and its workflow runs commands that are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import CHARTS
from tests.machine import deadline_seconds

ROOT = CHARTS.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TARGETS = set(re.findall(r"^([a-z0-9]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())


@pytest.mark.parametrize("chart", sorted(CHARTS.glob("*/Chart.yaml")), ids=lambda path: path.parent.name)
def test_charts_have_the_version_of_the_package(chart: Any) -> None:
    document = yaml.safe_load(chart.read_text())
    assert (document["version"], document["appVersion"]) == (VERSION, VERSION)
    images = re.findall(r"ghcr\.io/fulcrum/\w+:(\S+)", chart.read_text() + (chart.parent / "values.yaml").read_text())
    assert set(images) <= {VERSION}


def test_the_manifests_run_the_version_of_the_package() -> None:
    deployment = yaml.safe_load((ROOT / "manifests/operator/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(f":{VERSION}")


def test_the_workflow_runs_make_targets_that_exist() -> None:
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    matrix = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["target"]
    run = {word for command in commands for word in re.findall(r"^make (\w+)", command)} | set(matrix)
    assert run == {"check", "unit", "integration", "scan", "e2e", "images", "release"}
    assert run <= TARGETS


def make_images(*, engine: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", ROOT / "requirements/images.sh"],
        env={"PATH": os.environ["PATH"], "CONTAINER_ENGINE": str(engine), **environment},
        capture_output=True, text=True, check=False, timeout=deadline_seconds(60),
    )  # fmt: skip


def test_images_are_the_ones_that_charts_and_manifests_run(tmp_path: Path) -> None:
    """What is asked of the engine; tests/test_dockerfiles.py runs the build steps themselves."""
    engine, asked = tmp_path / "engine", tmp_path / "asked"
    engine.write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
    engine.chmod(0o755)
    done = make_images(engine=engine, ROCM="1")
    assert done.returncode == 0, done.stderr
    builds = [shlex.split(line) for line in asked.read_text().splitlines() if line.startswith("build ")]
    tags = {each[each.index("--tag") + 1]: each for each in builds}
    shipped = re.findall(r"image: (\S+)", (CHARTS / "fulcrum/Chart.yaml").read_text())
    assert sorted(tags) == sorted(shipped)
    for words in tags.values():
        assert (ROOT / words[words.index("--file") + 1]).is_file()
        assert words[-1] == "."
    assert make_images(engine=engine, IMAGES="here", TAG="1").returncode == 0
    assert "build --file Dockerfile --tag here/fulcrum:1 ." in asked.read_text()
    assert "here/worker-rocm:1" not in asked.read_text(), "25 GB more are built where they are asked for"


@pytest.mark.parametrize("engine", ["docker", "no-such-engine"])
def test_without_an_engine_images_say_what_to_install(engine: str) -> None:
    done = make_images(engine=engine, DOCKER_HOST="unix:///nothing/here.sock")
    assert done.returncode == 1
    assert f"{engine} does not" in done.stderr
    assert "Install Docker or Podman" in done.stderr


def test_tests_may_not_write_to_the_repository() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name for name, job in WORKFLOW["jobs"].items() if "permissions" in job} == {"release"}


def test_every_tool_in_an_environment_of_its_own_is_pinned() -> None:
    for name in re.findall(
        r"tool\.sh (\w+)", (ROOT / "Makefile").read_text() + (ROOT / "requirements/release.sh").read_text()
    ):
        pins = [
            line for line in (ROOT / f"requirements/{name}.lock").read_text().splitlines() if not line.startswith(" ")
        ]
        assert pins
        assert all("==" in pin for pin in pins)
