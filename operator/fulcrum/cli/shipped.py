"""Files of the repository that come with the package, because commands use them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SIMULATED: Final = "examples/simulate.yaml"
"""The cluster of `fulcrum simulate --demo` and `fulcrum dashboard --demo`."""
DEMO_LOAD: Final = "swing"
"""The load of both, by its name in `fulcrum.simulation.generate.WORKLOADS`."""
DEMO_TURN_SECONDS: Final = 5.0
"""Least time between two turns of the planner in both: quicker to simulate than the operator's 2 s."""


def shipped(name: str) -> Path:
    """Return the path of a shipped file, in a wheel or in a checkout. Errors: FileNotFoundError."""
    package = Path(__file__).parents[1]
    found = (root / name for root in (package / "_install", package.parents[1]))
    for path in found:
        if path.is_file():
            return path
    raise FileNotFoundError(2, "this installation of Fulcrum has no such file; install it again", name)
