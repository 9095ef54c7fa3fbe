"""The gateway behaves the same when its path is compiled (hatch_build.py)."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "dispatch/test_access", "dispatch/test_accounting", "dispatch/test_admit", "dispatch/test_attempt",
    "dispatch/test_entrance", "dispatch/test_hold", "dispatch/test_messages", "dispatch/test_recorder",
    "dispatch/test_request_ring", "dispatch/test_responses", "dispatch/test_resume", "dispatch/test_tokenizing",
    "http/test_connection", "http/test_framing", "http/test_response_budget", "http/test_slow_readers",
    "http/test_streams", "api_formats/test_bodies", "tracing/test_tracing", "tracing/test_troubled_requests",
    "front/test_clusters_that_fail", "front/test_front", "front/test_renaming",
)  # fmt: skip
PATCHES = "tests/gateway/dispatch/test_access.py::test_logs_hold_neither_prompts_nor_keys"
"""Replaces a method, which compiled classes do not allow."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def test_no_module_of_the_path_is_missed(compiled: Path) -> None:
    """All are compiled but those that are named; each of these exists and is not."""
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    plain = {name for names in build["PLAIN"].values() for name in names}
    for package in build["PACKAGES"]:
        for path in (ROOT / "operator/fulcrum" / package).glob("*.py"):
            name = f"{package}/{path.stem}"
            is_compiled = any((compiled / "fulcrum" / package).glob(f"{path.stem}.*.so"))
            assert is_compiled is (name not in plain and path.stem != "__init__"), name
    assert all((ROOT / "operator/fulcrum" / f"{name}.py").is_file() for name in plain)


def test_the_compiled_gateway_passes_the_tests_of_the_plain_one(compiled: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(compiled)}
    where = "import fulcrum.gateway.dispatch.attempt as module; print(module.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert found.stdout.strip().endswith(".so")
    paths = [f"tests/gateway/{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--deselect", PATCHES, *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-8000:]
