"""Files that the agent and its engine share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """A folder that only their user can open."""

    folder: Path

    @property
    def speed(self) -> Path:
        """Where the engine finds its measured speed."""
        return self.folder / "speed.json"

    @property
    def events(self) -> Path:
        """Socket at which the engine says what becomes of its KV blocks."""
        return self.folder / "kv-events"
