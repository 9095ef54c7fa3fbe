"""Makes NIXL's progress thread sleep until something happens, where cores are scarce.

NIXL's Python agent gives its UCX progress thread a poll time of zero (nixl 1.5.1, `pthrDelay = 0` in `nixl._api`), so
every idle engine keeps a core busy: four CPU workers on two cores leave nothing for inference (measured: 100 % of a
core, most of it in system calls). With a poll time the thread sleeps in poll(2) and still wakes at once for an event.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

ENV_POLL_MICROSECONDS: Final = "FULCRUM_WORKER_NIXL_POLL_MICROSECONDS"


def sleep_when_idle(poll_microseconds: int) -> None:
    """Has NIXL agents of this process poll at least this long. Raises ImportError, AttributeError if NIXL differs."""
    bindings: Any = importlib.import_module("nixl._bindings")
    base: Any = bindings.nixlAgentConfig
    delay = base.pthrDelay

    class IdleAgentConfig(base):  # type: ignore[misc]
        @property
        def pthrDelay(self) -> int:  # noqa: N802 - NIXL's name
            return int(delay.fget(self))

        @pthrDelay.setter
        def pthrDelay(self, microseconds: int) -> None:  # noqa: N802
            delay.fset(self, max(microseconds, poll_microseconds))

    bindings.nixlAgentConfig = IdleAgentConfig
