"""A change of a vLLM engine that a test asks for; nothing else about it changes.

Python runs this at start in each process that has this folder in PYTHONPATH.

FULCRUM_TEST_CHANGE: `MODULE=CHANGE`. The module CHANGE is imported as soon as vLLM has imported its own MODULE.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class After(MetaPathFinder):
    """Imports a module right after another one."""

    def __init__(self, name: str, change: str) -> None:
        self._name = name
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module that is waited for, with the change at the end of its import."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            importlib.import_module(self._change)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


if change := os.environ.get("FULCRUM_TEST_CHANGE"):
    sys.meta_path.insert(0, After(*change.split("=")))
