"""Processes by identity (pid and start time), whether or not they are children of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MARK_POD_UID: Final = "FULCRUM_POD_UID"
MARK_CONTAINER: Final = "FULCRUM_CONTAINER"
MARK_STATE: Final = "FULCRUM_NODE_STATE"
"""Environment of every container process: which Pod, which container, which kubelet's state folder."""

_MARKS: Final[frozenset[str]] = frozenset({MARK_POD_UID, MARK_CONTAINER, MARK_STATE})
_PR_SET_CHILD_SUBREAPER: Final = 36
_SHIM: Final = Path(__file__).with_name("shim.py")
own_children: Final[set[int]] = set()
"""Pids that this process started and reaps itself; every other child is an orphan that came to it (`sweep_orphans`)."""


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot (proc(5), field 22); None when no such process runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, never mistaken for a later one with the same pid."""

    pid: int
    ticks: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid=pid, ticks=ticks)

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.ticks

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone."""
        pidfd = open_pidfd(self)
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


def open_pidfd(identity: Identity) -> int | None:
    """A file descriptor that becomes readable when the process ends; None when it has ended."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if not identity.alive:  # checked after opening, so the descriptor is of this very process
        os.close(pidfd)
        return None
    return pidfd


async def wait_gone(identity: Identity) -> None:
    """Return when the process has ended (as a zombie counts too)."""
    pidfd = open_pidfd(identity)
    if pidfd is None:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


class Shim:
    """Handle of one container's shim, started here or adopted. See `shim.py`."""

    def __init__(self, identity: Identity, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._popen = popen

    @classmethod
    def start(
        cls,
        directory: Path,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        *,
        log_bytes: int,
        cpu_limit: float | None = None,
    ) -> Shim:
        """Start `argv` below a new shim whose files go to `directory`.

        `cpu_limit` is in cores, and holds from `limit` on. Errors: OSError when no process can be made.
        """
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SHIM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # The marks let `fulcrum down` find the shim as it finds what runs below it.
            env={key: value for key, value in env.items() if key in _MARKS},
            start_new_session=True,
        )
        own_children.add(popen.pid)
        identity = Identity.of(popen.pid)
        if identity is None:
            popen.wait()
            own_children.discard(popen.pid)
            raise OSError("the shim ended at once")
        # Recorded before it gets its configuration: a kubelet that dies in between leaves a shim that only ends.
        record = {"pid": identity.pid, "ticks": identity.ticks}
        write_private(directory / "shim.json", json.dumps(record))
        assert popen.stdin is not None
        config: dict[str, Any] = {"directory": str(directory), "argv": argv, "env": env, "cwd": cwd}
        config |= {"logBytes": log_bytes, "cpuLimit": cpu_limit}
        popen.stdin.write(json.dumps(config).encode())
        popen.stdin.close()
        return cls(identity, popen)

    @classmethod
    def adopt(cls, directory: Path) -> Shim | None:
        """The shim that an earlier kubelet started for `directory`, if it still runs."""
        record = read_json(directory / "shim.json")
        if record is None:
            return None
        identity = Identity(pid=record["pid"], ticks=record["ticks"])
        return cls(identity) if identity.alive else None

    async def started(self) -> bool:
        """Wait until the program runs; False when it could not be started (then `exit.json` says why)."""
        if self._popen is None or self._popen.stdout is None:
            return True
        loop = asyncio.get_running_loop()
        fd = self._popen.stdout.fileno()
        readable = asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(fd)
        answer = os.read(fd, 16)
        self._popen.stdout.close()
        return bool(answer)

    async def ended(self) -> None:
        """Wait until the shim is gone; with it everything that it ran."""
        await wait_gone(self.identity)
        if self._popen is not None:
            self._popen.wait()
            own_children.discard(self._popen.pid)

    def terminate(self) -> None:
        """SIGTERM to the container's main process."""
        self.identity.signal(signal.SIGTERM)

    def limit(self) -> None:
        """From now on the container is held to its CPU limit; again changes nothing."""
        self.identity.signal(signal.SIGUSR2)

    def kill(self) -> None:
        """SIGKILL to everything in the container."""
        self.identity.signal(signal.SIGUSR1)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process of ours was started with; empty when it is gone."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def marked(marks: dict[str, str]) -> Iterator[Identity]:
    """Processes of ours whose environment has all of `marks`."""
    wanted = [f"{key}={value}".encode() for key, value in marks.items()]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or of another user
            continue
        if all(mark in environment for mark in wanted):
            identity = Identity.of(int(entry.name))
            if identity is not None:
                yield identity


def kill_marked(marks: dict[str, str]) -> int:
    """SIGKILL what `marked` finds, until nothing is found; returns how many were killed."""
    killed = 0
    for _ in range(20):
        found = [identity for identity in marked(marks) if identity.signal(signal.SIGKILL)]
        if not found:
            break
        killed += len(found)
    return killed


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's (Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    pid = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def sweep_orphans() -> None:
    """Kill and reap children that this process did not start: what a killed shim left behind."""
    for child in _children():
        if child not in own_children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, os.WNOHANG)


def reap_orphans(known_pids: set[int]) -> None:
    """Reap children that this process did not start and that have ended; those that run go on."""
    for child in _children():
        if child not in known_pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object written by us; None when the file is missing or was cut off."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)
