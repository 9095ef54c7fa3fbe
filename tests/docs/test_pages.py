"""What single pages promise: sources for what is said of others, commands for figures, fields for arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT, pages

from fulcrum.api.crd import root_schema
from fulcrum.api.engine_args import check_engine_args

_FIELD = re.compile(r"`((?:model|slo|pools\[\]|engine|balance|admission|gateway|telemetry)\.[\w.\[\]]+)")
"""A field of an InferenceCluster's spec, as pages write it."""


def field_paths(schema: dict[str, Any], prefix: str) -> set[str]:
    """Return each field below a schema, as `pools[].workers.min`."""
    found = set()
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        found |= {path, f"{path}[]"} | field_paths(field, f"{path}.")
        found |= field_paths(field.get("items", {}), f"{path}[].")
    return found


def rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the tables below a heading, up to the next one; header and ruler left out."""
    section = text.partition(f"\n{heading}\n")[2].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section + "\n", re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_comparison_is_dated_and_every_cell_has_its_source() -> None:
    page = (ROOT / "docs/concepts/compared.md").read_text()
    assert re.search(r"As documented on \d{1,2} \w+ 20\d\d", page)
    found = rows(page, "## Side by side")
    assert len(found) >= 5
    for _, ours, *others in found:
        assert ".md" in ours
        assert "](https://" not in ours
        assert len(others) == 4
        assert [cell for cell in others if "](https://" not in cell] == []


@pytest.mark.parametrize("page", ["from-kserve", "from-llm-d", "from-dynamo"])
def test_fields_that_a_neighbours_fields_become_exist(page: str) -> None:
    """Paths such as `pools[].workers` in the second column of the tables."""
    known = field_paths(root_schema()["properties"]["spec"], "")
    found = rows((ROOT / f"docs/operations/{page}.md").read_text(), "## What becomes what")
    assert len(found) > 15
    assert [cell for _, cell in found for path in _FIELD.findall(cell) if path not in known] == []
    assert sum(len(_FIELD.findall(cell)) for _, cell in found) > 10


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("README.md", "## Measured"),
        ("docs/results.md", "## Targets that hold"),
        ("docs/results.md", "## Targets that are not held"),
    ],
)
def test_figures_have_the_command_that_prints_them(page: str, heading: str) -> None:
    found = [cells for cells in rows((ROOT / page).read_text(), heading) if not cells[0].isdecimal()]
    assert len(found) >= 7
    for cells in found:
        command = re.fullmatch(r"`(?:python (benchmarks/\w+\.py)( --\w+)?|make (\w+))`", cells[-1])
        assert command, cells
        if command[1]:
            program = (ROOT / command[1]).read_text()
            assert not command[2] or f'"{command[2].strip()}"' in program
        else:
            assert re.search(rf"^{command[3]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_arguments_that_a_field_replaces_are_refused_with_the_name_of_that_field() -> None:
    found = rows((ROOT / "docs/start/migrate.md").read_text(), "## Translate the arguments")
    arguments = {cells[0].strip("`"): cells[1].strip("`") for cells in found if cells[0].startswith("`--")}
    assert len(arguments) > 8
    for argument, field in arguments.items():
        (problem,) = check_engine_args([f"{argument}=x"])
        assert f"spec.{field}" in problem.message, argument


_FILE = re.compile(
    r"`(?:[\w -]* )?((?:benchmarks|charts|docs|examples|manifests|operator|requirements|tests)/[\w/.-]+\.\w+)[` ]"
)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_repository_that_are_named_are_there(page: Path) -> None:
    named = set(_FILE.findall(page.read_text()))
    assert sorted(path for path in named if "NAME" not in path and not (ROOT / path).exists()) == []
