"""The contract that finds circles of files, on packages made for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from requirements.import_circles import circles

ROOT = Path(__file__).parent.parent
SETTINGS = """
[tool.importlinter]
root_packages = ["planted"]
contract_types = ["file_circles: requirements.import_circles.FileCircles"]

[[tool.importlinter.contracts]]
name = "no circles"
type = "file_circles"
"""


def plant(folder: Path, files: dict[str, str]) -> None:
    for name, text in ({"__init__.py": ""} | files).items():
        path = folder / "planted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the circles of the package `planted` with these files."""
    plant(folder, files)
    monkeypatch.syspath_prepend(folder)
    return circles(grimp.build_graph("planted", cache_dir=None))


def lint(folder: Path, files: dict[str, str], settings: str = SETTINGS) -> tuple[int, str]:
    """Return the exit code of `lint-imports` and what it prints, on the package `planted` with these files."""
    plant(folder, files)
    (folder / "pyproject.toml").write_text(settings)
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "COLUMNS": "200"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


CIRCLES = {
    "three files": (
        {"a.py": "import planted.c", "b.py": "from planted.a import x", "c.py": "from planted import b"},
        "planted.a -> planted.c -> planted.b -> planted.a",
    ),
    "for type checking": (
        {
            "a.py": "from planted.b import x",
            "b.py": "import typing\nif typing.TYPE_CHECKING:\n    from planted.a import y",
        },
        "planted.a -> planted.b -> planted.a",
    ),
    "inside a function": (
        {"a.py": "from planted.b import x", "b.py": "def f():\n    import planted.a"},
        "planted.a -> planted.b -> planted.a",
    ),
    "by way of a package": (
        {"inner/__init__.py": "from planted.inner.a import x", "inner/a.py": "from planted.inner import y"},
        "planted.inner -> planted.inner.a -> planted.inner",
    ),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_all_files_of_a_circle_are_named_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, circle = CIRCLES[name]
    assert [" -> ".join((*one, one[0])) for one in found(tmp_path, files, monkeypatch)] == [circle]


def test_a_chain_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "inner/__init__.py": "from planted.inner.a import x",
        "inner/a.py": "from planted.inner import b",
        "inner/b.py": "import planted.c",
        "c.py": "import typing",
    }
    assert found(tmp_path, files, monkeypatch) == []


def test_lint_imports_prints_circles_and_exceptions_that_are_no_longer_needed(tmp_path: Path) -> None:
    files, circle = CIRCLES["inside a function"]
    code, printed = lint(tmp_path, files)
    assert code == 1
    assert circle in printed
    ignored = SETTINGS + 'ignore_imports = ["planted.a -> planted.b"]\n'
    assert lint(tmp_path, files, ignored)[0] == 0
    code, printed = lint(tmp_path, files | {"a.py": ""}, ignored)
    assert code == 1
    assert "planted.a -> planted.b" in printed
