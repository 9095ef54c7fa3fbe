"""CONTRIBUTING.md says what each room imports at most, and names every import contract."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT
from tests.docs.test_pages import rows

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
_QUOTED = re.compile(r"`([\w/]+)`")


def room_folders() -> dict[str, Path]:
    """Return the folders that are rooms: those of the package `fulcrum`, and the other packages."""
    packages = [path.parent for base in ("operator", "worker_image") for path in ROOT.glob(f"{base}/*/__init__.py")]
    inside = [path.parent for path in (ROOT / "operator/fulcrum").glob("*/__init__.py")]
    return {path.name: path for path in (*inside, *packages) if path.name != "fulcrum"}


def allowed() -> dict[str, set[str]]:
    """Return what each room may import, by the table."""
    core = set(_QUOTED.findall(TEXT.partition('"The core" is')[2].split(". ")[0]))
    found = {}
    for names, _, cell in rows(TEXT, "## The rooms"):
        these = set(_QUOTED.findall(cell)) | (core if "the core" in cell else set())
        found |= dict.fromkeys(_QUOTED.findall(names), set(ROOMS) if cell == "everything" else these)
    return found


def imports_of(folder: Path, room: str) -> dict[str, str]:
    """Return the other rooms that a room imports, each with a file and line that does."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                other = module.removeprefix("fulcrum.").split(".")[0]
                if module.startswith("fulcrum") and other in ROOMS and other != room:
                    found[other] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


ROOMS = room_folders()
ALLOWED = allowed()


def test_every_room_has_a_row() -> None:
    assert set(ALLOWED) == set(ROOMS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_what_its_row_says_at_most(room: str) -> None:
    found = imports_of(ROOMS[room], room)
    assert {other: where for other, where in found.items() if other not in ALLOWED.get(room, set())} == {}


def test_every_contract_is_named() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [each["name"] for each in contracts if f"- {each['name']}." not in TEXT] == []
