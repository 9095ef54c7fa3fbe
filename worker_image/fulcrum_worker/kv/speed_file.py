"""The speed that the agent measured at start, handed to its engine in a file: a schedule of vLLM's own learns none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from fulcrum.api.worker import SpeedCoefficients

SPEED_FILE: Final = "speed_file"
"""Key of the connector's configuration."""
_LOOK_SECONDS: Final = 5.0
"""Time between two looks at a file that is not there yet."""


def write_speed(path: Path, speed: SpeedCoefficients) -> None:
    """Write the file at once. Raises OSError."""
    made = path.with_suffix(".new")
    made.write_bytes(msgspec.json.encode(speed))
    made.replace(path)


class MeasuredSpeed:
    """What the file says, once it is there."""

    def __init__(self, path: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._next = float("-inf")
        self._read: SpeedCoefficients | None = None

    def coefficients(self) -> SpeedCoefficients | None:
        """Return the speed; None while it is not measured."""
        if self._read is None and self._path is not None and self._clock() >= self._next:
            self._next = self._clock() + _LOOK_SECONDS
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._read = msgspec.json.decode(self._path.read_bytes(), type=SpeedCoefficients)
        return self._read
