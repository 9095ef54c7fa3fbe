"""Processes of a benchmark, which end with it, and ports for them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
_STOP_SECONDS = 15.0


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nothing listens."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


@contextlib.contextmanager
def tidy_on_sigterm() -> Iterator[None]:
    """Meanwhile SIGTERM (of `kill`, `timeout`, a limit of CI) is like Ctrl-C, so that what was started is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def started(
    command: Sequence[str], *, package: Path | None = None, silent: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process, stopped at the end; `package`: where it finds the package first, `silent`: what it prints is lost."""
    pipe = subprocess.DEVNULL if silent else subprocess.PIPE
    process = subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL if silent else None,
        text=True,
        bufsize=1,
        env=environment(package),
    )
    with process, tidy_on_sigterm():
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def environment(package: Path | None) -> dict[str, str]:
    """The environment of a process that finds the package in a folder first."""
    return {**os.environ, **({"PYTHONPATH": str(package)} if package is not None else {})}


def printed_line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints. Raises EOFError when it has ended."""
    assert process.stdout is not None
    printed = process.stdout.readline()
    if not printed:
        raise EOFError(f"{process.args!r} has ended")
    return printed
