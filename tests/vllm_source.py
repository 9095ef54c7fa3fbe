"""The source of vLLM, to be read and not imported: facts of it that Fulcrum rests on.

`FULCRUM_VLLM_SOURCE` names another tree than the installed one, such as that of the next release (`make vllm-next`).
"""

from __future__ import annotations

import ast
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Final

ENV_SOURCE: Final = "FULCRUM_VLLM_SOURCE"


@cache
def root() -> Path:
    """Folder of the package `vllm`."""
    if named := os.environ.get(ENV_SOURCE):
        return Path(named) / "vllm"
    spec = importlib.util.find_spec("vllm")
    assert spec is not None, "vLLM is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def module(path: str) -> ast.Module:
    """The parsed file at `path` below the package."""
    return ast.parse((root() / path).read_text(encoding="utf-8"))


def definition(path: str, *names: str) -> ast.AST:
    """The class or function in a file, by its qualified name."""
    found: ast.AST = module(path)
    for name in names:
        found = next(
            node
            for node in ast.walk(found)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
    return found


def strings(path: str, *names: str) -> set[str]:
    """Every string constant in a definition."""
    return {
        node.value
        for node in ast.walk(definition(path, *names))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def code(path: str, *names: str) -> str:
    """A definition's source, without comments and in the form of `ast.unparse`."""
    return ast.unparse(definition(path, *names) if names else module(path))
