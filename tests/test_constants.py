"""Numbers of the rooms that decide: what shapes behaviour is an entry of a Tuning, and what is left is named here.

Seen are constants of modules and classes with a number in them, and floating-point numbers within functions but 0, 0.5,
1, 2 and guards of 1e-6 and below. Integers within functions (indices, halvings) are not seen.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[1] / "operator/fulcrum"
ROOMS = ("admission", "decide", "load", "performance", "report", "rollout", "routing")
PLAIN = (0.0, 0.5, 1.0, 2.0)
GUARD = 1e-6

LEFT = (
    "decide/last_layout.py _USUAL",
    "routing/engine_speed.py NOMINAL_SPEED",
    "routing/prefix_room.py keep: 1e+06",
    "routing/timing.py _MOST_ROWS",
)
"""Shape behaviour and are no entries of a Tuning yet. This list may only become shorter."""

DEFAULTS = (
    "admission/decide.py __init__: 0.1",
    "admission/decide.py __init__: 0.95",
)
"""Defaults of arguments and assumptions that the gateway's configuration replaces."""

PRECISION = (
    "performance/staffing.py _AT_FULL_LOAD",
    "performance/staffing.py _HALVINGS",
    "performance/staffing.py _MOST_SPREADS",
)
"""Precision, range and steps of a computation: finer ones give the same decisions."""

WORDS = (
    "admission/outcome.py numbers: 1000",
    "report/layouts.py _POOLS_CHARACTERS",
    "report/unserved.py _SHARES",
    "routing/affinity.py POOL",
    "routing/sent.py MAX_BATCH_KEYS",
)
"""Formats, bounds of messages, and units."""


def has_number(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, int | float) and not isinstance(part.value, bool)
        for part in ast.walk(node)
    )


def constants(file: str, body: list[ast.stmt]) -> Iterator[str]:
    """Names of constants with a number, of a module or one of its classes; those of a Tuning are where they belong."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.endswith("Tuning"):
            yield from (name for name in constants(file, node.body) if name.rpartition(" ")[2].isupper())
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not has_number(node.value):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (f"{file} {part.id}" for part in ast.walk(target) if isinstance(part, ast.Name))


def numbers(file: str, tree: ast.Module) -> Iterator[str]:
    """Floating-point numbers within functions that are not plain ones, with the function that has them."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ast.walk(function):
                if isinstance(part, ast.Constant) and isinstance(part.value, float):
                    size = abs(part.value)
                    if size not in PLAIN and size > GUARD:
                        yield f"{file} {function.name}: {part.value:g}"


def found() -> set[str]:
    names: set[str] = set()
    for room in ROOMS:
        for path in sorted((CORE / room).rglob("*.py")):
            tree, file = ast.parse(path.read_text()), str(path.relative_to(CORE))
            names.update(constants(file, tree.body), numbers(file, tree))
    return names


def test_numbers_that_shape_behaviour_are_entries_of_a_tuning() -> None:
    """A new number goes into the Tuning of its room; one that is gone is struck from the list."""
    listed = Counter((*LEFT, *DEFAULTS, *PRECISION, *WORDS))
    assert [name for name, times in listed.items() if times > 1] == []
    there = found()
    assert sorted(there - set(listed)) == [], "make it an entry of the room's Tuning"
    assert sorted(set(listed) - there) == [], "it is gone: strike it"
