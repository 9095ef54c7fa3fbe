"""A GPU that failed under an engine, as an agent says it in its termination message and the operator reads it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, NamedTuple

_SAID: Final = re.compile(
    r"^GPU failed: ([A-Za-z][A-Za-z0-9_ /,()-]{0,95})(?: \[([A-Za-z0-9][A-Za-z0-9_ :.-]{0,63})\])?;", re.MULTILINE
)
"""The line of `said`. What an engine prints can look like it, so it is read only beside `EXIT_DEVICE_FAILED`."""

AVOIDED: Final = timedelta(hours=6)
"""How long new workers avoid the node of a GPU that failed: long enough to drain and repair it, and a worker that finds
no other node tries elsewhere four times a day."""


class DeviceFault(NamedTuple):
    """What failed, in words of the agent's own list, and which GPU."""

    what: str
    gpu: str | None = None
    """UUID, PCI address, `node-1` of ROCm, or `rank 1` of the worker; None: the engine did not say."""


def said(fault: DeviceFault) -> str:
    """Return how a termination message begins that ends a worker for `fault`."""
    return f"GPU failed: {fault.what}{f' [{fault.gpu}]' if fault.gpu else ''}; "


def heard(message: str) -> DeviceFault | None:
    """Return what a termination message says of a GPU; None where it says nothing that can be read."""
    found = _SAID.search(message)
    return DeviceFault(found[1], found[2]) if found else None
