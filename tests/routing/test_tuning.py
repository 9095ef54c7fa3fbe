"""Every number that shapes routing is an entry of its `Tuning`, with a reason, and is read somewhere."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

from fulcrum.routing.tuning import RoutingTuning

SOURCES = Path(__file__).parents[2] / "operator" / "fulcrum" / "routing"
SHAPES_NO_CHOICE = {
    "engine_speed": {"NOMINAL_SPEED"},
    "affinity": {"POOL"},
    "sent": {"MAX_BATCH_KEYS"},
    "timing": {"_MOST_ROWS"},
}
"""Guards of a division, bounds of a message, and what predicts a batch: by module."""


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def numbers(path: Path) -> set[str]:
    """Names at the top of a module that stand for numbers."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(is_number(inner) for inner in ast.walk(node.value)):
                found |= {ast.unparse(target) for target in targets}
    return found


def test_no_other_module_has_a_number_that_shapes_a_choice() -> None:
    modules = [path for path in SOURCES.glob("*.py") if path.stem != "tuning"]
    assert len(modules) > 15
    for path in modules:
        assert numbers(path) <= SHAPES_NO_CHOICE.get(path.stem, set()), path.stem


def test_every_entry_says_why_and_is_read() -> None:
    (tree,) = [
        node
        for node in ast.parse((SOURCES / "tuning.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == RoutingTuning.__name__
    ]
    entries = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
    after = {place: tree.body[tree.body.index(entry) + 1] for place, entry in enumerate(entries)}
    assert len(entries) == len(fields(RoutingTuning))
    code = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    for place, entry in enumerate(entries):
        reason = after[place]
        assert isinstance(reason, ast.Expr)
        assert isinstance(reason.value, ast.Constant)
        assert len(str(reason.value.value)) > 40
        assert re.search(rf"(uning|self)\.{ast.unparse(entry.target)}\b", code.replace("TUNING", "tuning"))


def test_a_difference_as_large_as_an_estimate_can_be_wrong_decides_nothing() -> None:
    tuning = RoutingTuning(estimate_share=0.75)
    assert tuning.equally_full(1.2, 1.0)
    assert not tuning.clearly_fuller(1.2, 1.0)
    assert not tuning.equally_full(1.25, 1.0), "neither emptier nor fuller by less"
    assert not tuning.clearly_fuller(1.25, 1.0), "nor by more"
    assert tuning.clearly_fuller(1.3, 1.0)
