"""Processes of a benchmark, which end with it, and ports for them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
_STOP_SECONDS = 15.0
_PORTS: Final = range(20_000, 30_000)
"""Below those that kernels choose for outgoing connections and for port 0 (Linux: 32,768 and up)."""
_MOST_HELD: Final = 64
_held: Final[deque[socket.socket]] = deque()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports for servers that start later, or come again: nothing listens on them, and nobody else is given them.

    The kernel chooses none of them for others. No other call gives them, in no process, until this process has ended or
    has taken 64 more. Raises OSError where there are none left.
    """
    first = random.randrange(len(_PORTS))
    found = list(islice((port for port in (*_PORTS[first:], *_PORTS[:first]) if _hold(host, port)), count))
    if len(found) < count:
        raise OSError(errno.EADDRINUSE, f"{count} free ports of {host} are asked for, there are {len(found)}.")
    return found


def _hold(host: str, port: int) -> bool:
    """Hold a port against other calls by the datagram socket of the same number."""
    held = socket.socket(type=socket.SOCK_DGRAM)
    try:
        held.bind((host, port))
        socket.create_server((host, port)).close()
    except OSError:
        held.close()
        return False
    _held.append(held)
    if len(_held) > _MOST_HELD:
        _held.popleft().close()
    return True


@atexit.register
def _let_go() -> None:
    """Close what is held; Python warns of sockets that are open at its end."""
    for held in _held:
        held.close()


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
