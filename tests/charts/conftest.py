"""The charts, rendered by the real helm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.machine import deadline_seconds

CHARTS = Path(__file__).resolve().parents[2] / "charts"

Objects = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run helm."""
    beside = Path(sys.executable).with_name("helm")
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed (requirements/helm.sh says how it comes)")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, *arguments], capture_output=True, text=True, timeout=deadline_seconds(60), check=False
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Objects]:
    """Render a chart with `--set` values; its objects."""

    def rendered(chart: str, *settings: str) -> Objects:
        values = [argument for setting in settings for argument in ("--set", setting)]
        done = helm("template", "release", str(CHARTS / chart), "--namespace", "fulcrum-system", *values)
        assert done.returncode == 0, done.stderr
        documents = [document for document in yaml.safe_load_all(done.stdout) if document]
        return {(document["kind"], document["metadata"]["name"]): document for document in documents}

    return rendered
