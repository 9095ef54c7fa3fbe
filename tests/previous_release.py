"""The release before this one, taken from git history, and the Kubernetes client that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
COMMIT = "3be06fc"
"""The last one before this release."""
CLIENT = ("lightkube", "lightkube-models", "httpx2", "httpcore2")
"""What the operator of that commit needs and this one does not."""


def previous_release(folder: Path) -> Path:
    """Unpack its tree into `folder`; skips the test where there is no git history with it."""
    archive = subprocess.run(["git", "-C", REPOSITORY, "archive", COMMIT], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no git history with {COMMIT}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def add_client(tree: Path) -> None:
    """Install its Kubernetes client beside it; skips the test where that cannot be had."""
    target = tree / "client"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), *CLIENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the client of the release before cannot be installed: {done.stderr.strip()[-300:]}")


def python_path(tree: Path) -> str:
    """PYTHONPATH with which `fulcrum` is the release before."""
    return f"{tree / 'operator'}{os.pathsep}{tree / 'client'}"
