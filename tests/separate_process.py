"""Questions to packages that are large or change globals, answered in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.machine import deadline_seconds


def answered(script: str, asked: object, *, package: str) -> dict[str, Any]:
    """What `script` prints last, asked on its standard input; both are JSON. Skips where there is no `package`."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=deadline_seconds(280),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
