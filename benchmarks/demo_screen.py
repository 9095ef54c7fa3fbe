"""How the demo speaks: steps, kubectl commands as a user would type them, and waits that say how far they are."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Final, Self

from local_cluster import Cluster, CommandError, wait_until
from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
TELL_SECONDS: Final = 15.0
"""Where the output is no terminal, and so nothing can be drawn over, progress is a line after so long."""


def step(text: str) -> None:
    console.print(f"\n[bold]== {text}[/]")


def command(cluster: Cluster, *arguments: str) -> None:
    """Runs kubectl and shows it as a user would type it."""
    console.print(f"[dim]$ kubectl {shlex.join(arguments)}[/]")
    console.print(cluster.kubectl(*arguments).rstrip(), markup=False)


class Telling:
    """Says what goes on: in place on a terminal, elsewhere a line now and then. A context manager."""

    def __init__(self, begin: str) -> None:
        self._status = console.status(begin)
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def tell(self, line: str) -> None:
        self._status.update(line)
        if not console.is_terminal and time.monotonic() - self._told_at >= TELL_SECONDS:
            self._told_at = time.monotonic()
            console.print(line, markup=False)


def wait(what: str, probe: Callable[[], bool], *, seconds: float, how_far: Callable[[], str] = lambda: "") -> None:
    """Wait until `probe` holds, and say how far it is. Raises TimeoutError."""
    began = time.monotonic()
    with Telling(f"waiting for {what} ...") as telling:

        def probe_and_tell() -> bool:
            if probe():
                return True
            try:
                far = how_far()
            except (CommandError, OSError, LookupError) as error:
                far = str(error)
            telling.tell(f"waiting for {what} ({time.monotonic() - began:.0f} s){': ' if far else ''}{far}")
            return False

        wait_until(what, probe_and_tell, seconds=seconds)
