"""Two lanes of tests side by side (`make e2e`): an engine that starts alone leaves a core idle, and so does a timer.

Clusters of both lanes are there at the same time, so their state folders must not have the same addresses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from fulcrum_local.home import Home

LANES: Final = 2


def lane() -> int:
    """Number of this process: pytest-xdist's, or 0 where all tests run in one."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def state_folder(tmp_path_factory: pytest.TempPathFactory, name: str, *below: str) -> Path:
    """Make a folder for the state of `fulcrum up`, or for `below` in it, with addresses that no other lane has.

    Addresses follow from the path of the folder, as the dashboard's port does.
    """
    while True:
        folder = tmp_path_factory.mktemp(name)
        if Home(root=folder.joinpath(*below)).dashboard_port % LANES == lane() % LANES:
            return folder
