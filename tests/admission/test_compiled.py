"""Routing and admission decide the same when they are compiled (hatch_build.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = "24"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


def run(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(path)},
    )


def test_the_compiled_code_decides_the_same(compiled: Path) -> None:
    replay = "tests/admission/replay.py"
    plain = run(replay, SEEDS, path=ROOT / "operator")
    native = run(replay, SEEDS, path=compiled)
    assert plain.stderr.strip().endswith(".py")
    assert native.stderr.strip().endswith(".so")
    lines = plain.stdout.splitlines()
    assert len(lines) == int(SEEDS) * 400
    assert sum("Unreachable" in line for line in lines) > 100
    assert plain.stdout == native.stdout


def test_the_compiled_code_passes_the_tests_of_decisions(compiled: Path) -> None:
    tests = ("tests/routing", "tests/admission/test_decide.py", "tests/admission/test_estimates.py")
    run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, path=compiled)
