"""Makes a vLLM engine's KV pulls take as long as over a link of so many bytes per second.

The data itself is there within milliseconds: only its completion is said later. The link carries one pull at a time, in
the order in which they were asked for. Bytes are those of NIXL's own descriptors, as vLLM counts them in its metrics.
The peer is told of the end of a pull when the data is there, and not when the link would be done.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Link:
    """What carries the pulls of one engine."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._asked_at: dict[Any, float] = {}
        self._done_at: dict[Any, float] = {}
        """By handle. Seconds of `time.monotonic`."""

    def asked(self, handle: Any) -> None:
        self._asked_at[handle] = time.monotonic()

    def is_done(self, handle: Any, size: int) -> bool:
        """Whether a pull of `size` bytes, whose data is there, has come over the link."""
        done_at = self._done_at.get(handle)
        if done_at is None:
            done_at = max(self._free_at, self._asked_at[handle]) + size / self._bytes_per_second
            self._free_at = self._done_at[handle] = done_at
        return time.monotonic() >= done_at

    def forget(self, handle: Any) -> None:
        self._asked_at.pop(handle, None)
        self._done_at.pop(handle, None)


def slow_down(agent: type[Any], link: Link) -> None:
    """Let all that instances of NIXL's `agent` read come over `link`."""
    transfer, check, release = agent.transfer, agent.check_xfer_state, agent.release_xfer_handle

    def slow_transfer(self: Any, handle: Any, *arguments: Any, **named: Any) -> str:
        link.asked(handle)
        state: str = transfer(self, handle, *arguments, **named)
        return state

    def slow_check(self: Any, handle: Any) -> str:
        state: str = check(self, handle)
        if state == "DONE" and not link.is_done(handle, self.get_xfer_telemetry(handle).totalBytes):
            return "PROC"
        return state

    def forgetful_release(self: Any, handle: Any) -> None:
        release(self, handle)
        link.forget(handle)

    agent.transfer, agent.check_xfer_state, agent.release_xfer_handle = slow_transfer, slow_check, forgetful_release


class AfterNixl(MetaPathFinder):
    """Slows NIXL's agents down when an engine imports them, as early an import would change how UCX begins."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return NIXL's own module (`nixl_cu13._api`, or another build's), changed at the end of its import."""
        if not (name.startswith("nixl_") and name.endswith("._api")):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            slow_down(module.nixl_agent, Link(self._bytes_per_second))

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec
