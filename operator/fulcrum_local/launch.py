"""Starting, finding and ending everything that belongs to one state folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from fulcrum_local.home import MARK_HOME, Home
from fulcrum_local.kubelet.processes import MARK_STATE, Identity, kill_marked, marked, read_json
from fulcrum_local.supervisor import open_log

_SUPERVISOR_SECONDS: Final = 45.0
"""Its four children get ten seconds each."""
_KILL_SECONDS: Final = 5.0


def is_running(home: Home) -> bool:
    """Whether a supervisor holds the folder."""
    try:
        fd = os.open(home.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def start_supervisor(home: Home, chaos_seed: int | None = None) -> None:
    """Start the supervisor as a process of its own that outlives this one. Errors: OSError."""
    chaos = () if chaos_seed is None else (str(chaos_seed),)
    home.make()
    home.kubeconfig.unlink(missing_ok=True)  # the API server writes it when it listens
    home.dashboard.unlink(missing_ok=True)
    with open_log(home.logs / "supervisor.log") as log:
        subprocess.Popen(
            [sys.executable, "-m", "fulcrum_local.supervisor", str(home.root), *chaos],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env={**os.environ, MARK_HOME: str(home.root)},
        )


def dashboard_url(home: Home) -> str | None:
    """The URL of the dashboard; None while it does not run."""
    try:
        return home.dashboard.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def members(home: Home) -> dict[str, Identity]:
    """The supervisor and its children, those that run."""
    record = read_json(home.supervisor) or {}
    found = {name: Identity(pid=item["pid"], ticks=item["ticks"]) for name, item in record.items()}
    return {name: identity for name, identity in found.items() if identity.alive}


def leftovers(home: Home) -> list[Identity]:
    """Every process that carries the mark of the folder: ours, and the Pods'."""
    found = {identity.pid: identity for identity in marked({MARK_HOME: str(home.root)})}
    found.update({identity.pid: identity for identity in marked({MARK_STATE: str(home.kubelet)})})
    return list(found.values())


def stop_supervisor(home: Home) -> None:
    """End the supervisor and its children: politely, then by force."""
    running = members(home)
    supervisor = running.get("supervisor")
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
        _wait(lambda: not supervisor.alive, _SUPERVISOR_SECONDS)
    # Without a supervisor (it was killed) its children have been told to end by the kernel.
    rest = [*running.values(), *marked({MARK_HOME: str(home.root)})]
    _end(rest, grace_seconds=_KILL_SECONDS)
    home.supervisor.unlink(missing_ok=True)


def stop_pods(home: Home, *, grace_seconds: float) -> None:
    """End the processes of all Pods: SIGTERM to each container's main process, after the grace SIGKILL to the rest."""
    shims = list(_shims(home))
    for shim in shims:
        shim.signal(signal.SIGTERM)
    _wait(lambda: not any(shim.alive for shim in shims), grace_seconds)
    for shim in shims:
        shim.signal(signal.SIGUSR1)
    _wait(lambda: not any(shim.alive for shim in shims), _KILL_SECONDS)
    kill_marked({MARK_STATE: str(home.kubelet)})


def _shims(home: Home) -> Iterable[Identity]:
    for path in home.kubelet.glob("pods/*/containers/*/*/shim.json"):
        record = read_json(path)
        if record is not None and not path.with_name("exit.json").exists():
            identity = Identity(pid=record["pid"], ticks=record["ticks"])
            if identity.alive:
                yield identity


def purge(home: Home) -> None:
    """Remove the state; only what is ours, should the folder hold anything else. Errors: OSError."""
    for folder in (home.apiserver, home.kubelet, home.logs, home.install):
        if folder.exists():
            shutil.rmtree(folder)
    for file in (home.kubeconfig, home.dashboard, home.supervisor, home.lock):
        file.unlink(missing_ok=True)
    if home.root.is_dir() and not any(home.root.iterdir()):
        home.root.rmdir()


def _end(identities: list[Identity], *, grace_seconds: float) -> None:
    for identity in identities:
        identity.signal(signal.SIGTERM)
    _wait(lambda: not any(identity.alive for identity in identities), grace_seconds)
    for identity in identities:
        identity.signal(signal.SIGKILL)
    _wait(lambda: not any(identity.alive for identity in identities), _KILL_SECONDS)


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def log_tail(path: Path, lines: int = 15) -> str:
    """The end of a log file, for an error message."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
