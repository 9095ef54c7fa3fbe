"""The parent of local mode's processes: API server, controllers, kubelet, dashboard.

Run as `python -m fulcrum_local.supervisor ROOT [CHAOS_SEED]`. It restarts what dies; when the API server cannot have
its port any more, it gets another one, and everything is started anew. When the supervisor is told to stop, or is
killed, its children end too; the Pods' processes go on until `fulcrum down`, or until the next kubelet takes over.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from fulcrum_local.home import EXIT_PORT_TAKEN, MARK_HOME, Home
from fulcrum_local.kubelet.processes import Identity, become_subreaper, reap_orphans, wait_gone, write_private
from fulcrum_local.log_format import log_to_stderr

logger = logging.getLogger(__name__)

NODE_NAME: Final = "local"
SERVER: Final = "apiserver"
_PASSED_ON: Final = (
    "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Beyond the kubelet's own list: where models come from is a property of the machine, not of a Pod."""

_PR_SET_PDEATHSIG: Final = 1
_FIRST_DELAY_SECONDS: Final = 0.2
_LAST_DELAY_SECONDS: Final = 5.0
_GOOD_RUN_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0
_REAP_SECONDS: Final = 5.0
_LOG_BYTES: Final = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to keep running."""

    name: str
    argv: tuple[str, ...]


def programs(home: Home, chaos_seed: int | None = None) -> tuple[Program, ...]:
    """What local mode consists of, in the order of starting."""
    fulcrum = (sys.executable, "-m", "fulcrum.cli.app")
    kubeconfig = str(home.kubeconfig)
    gpus = _gpu_count()
    server = (
        *fulcrum, "apiserver", "--state-dir", str(home.apiserver), "--kubeconfig-out", kubeconfig,
        "--service-cluster-ip-range", home.service_cidr, *(() if chaos_seed is None else (f"--chaos={chaos_seed}",)),
    )  # fmt: skip
    kubelet = (
        *fulcrum, "kubelet", "--kubeconfig", kubeconfig, "--node-name", NODE_NAME, "--state-dir", str(home.kubelet),
        "--pod-cidr", home.pod_cidr, "--no-taint", "--service-proxy",
        *(f"--pass-env={name}" for name in _PASSED_ON),
        *((f"--extended-resource=nvidia.com/gpu={gpus}",) if gpus else ()),
    )  # fmt: skip
    dashboard = (
        *fulcrum, "dashboard", "--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{home.dashboard_port}",
        "--url-file", str(home.dashboard),
    )  # fmt: skip
    return (
        Program(name=SERVER, argv=server),
        Program(name="controllers", argv=(sys.executable, "-m", "fulcrum_local.controlling", kubeconfig)),
        Program(name="kubelet", argv=kubelet),
        Program(name="dashboard", argv=dashboard),
    )


def _gpu_count() -> int:
    """NVIDIA GPUs that the driver knows."""
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


class Supervisor:
    """Keeps the programs of one state folder running until `stop` is set."""

    def __init__(self, home: Home, chaos_seed: int | None = None) -> None:
        self._home = home
        self._programs = programs(home, chaos_seed)
        self._children: dict[str, Identity] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Start everything, restart what ends, stop everything in reverse order."""
        reaper = asyncio.create_task(self._reap())
        keepers = [(program, asyncio.create_task(self._keep(program))) for program in self._programs]
        await self.stop.wait()
        for program, task in reversed(keepers):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            logger.info("program_stopped name=%s", program.name)
        reaper.cancel()
        self._home.supervisor.unlink(missing_ok=True)

    async def _reap(self) -> None:
        """Take the status of processes that lost their parent, such as shims of a kubelet that was killed."""
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            reap_orphans({identity.pid for identity in self._children.values()})

    async def _keep(self, program: Program) -> None:
        delay_seconds = _FIRST_DELAY_SECONDS
        while True:
            while program.name != SERVER and not self._home.kubeconfig.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)
            begun = time.monotonic()
            child = start(program, self._home)
            self._running[program.name] = child
            self._record(program.name, Identity.of(child.pid))
            logger.info("program_started name=%s pid=%d", program.name, child.pid)
            try:
                await self._ended(child)
            finally:
                self._record(program.name, None)
            if program.name == SERVER and child.returncode == EXIT_PORT_TAKEN:
                self._leave_port()
            if time.monotonic() - begun > _GOOD_RUN_SECONDS:
                delay_seconds = _FIRST_DELAY_SECONDS
            logger.warning(
                "program_ended name=%s exit_code=%s restart_in_seconds=%.1f",
                program.name,
                child.returncode,
                delay_seconds,
            )
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, _LAST_DELAY_SECONDS)

    def _leave_port(self) -> None:
        """Let the API server take another port; the others read their kubeconfig, which names it, when they start."""
        logger.warning("port_taken all programs are started anew with another port; see apiserver.log")
        self._home.kubeconfig.unlink(missing_ok=True)
        self._home.apiserver_port.unlink(missing_ok=True)
        for name, child in self._running.items():
            if name != SERVER and child.returncode is None:
                child.terminate()

    async def _ended(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for the child; when cancelled, end it first."""
        identity = Identity.of(child.pid)
        try:
            if identity is not None:
                await wait_gone(identity)
        except asyncio.CancelledError:
            child.terminate()
            if identity is not None:
                try:
                    async with asyncio.timeout(_STOP_SECONDS):
                        await wait_gone(identity)
                except TimeoutError:
                    child.kill()
            raise
        finally:
            child.wait()

    def _record(self, name: str, identity: Identity | None) -> None:
        if identity is None:
            self._children.pop(name, None)
        else:
            self._children[name] = identity
        own = Identity.of(os.getpid())
        running = {"supervisor": own, **self._children} if own else dict(self._children)
        record = {name: {"pid": item.pid, "ticks": item.ticks} for name, item in running.items()}
        write_private(self._home.supervisor, json.dumps(record))


def start(program: Program, home: Home) -> subprocess.Popen[bytes]:
    """Start a program as a child that does not outlive this process. Errors: OSError."""
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    path = home.logs / f"{program.name}.log"
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    with open_log(path) as log:
        return subprocess.Popen(
            program.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
            env={**os.environ, MARK_HOME: str(home.root)},
        )


def open_log(path: Path) -> IO[bytes]:
    """A log file for appending, readable by its owner only."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(fd, "ab")


async def supervise(home: Home, chaos_seed: int | None = None) -> int:
    """Until SIGTERM or SIGINT; 1 when another supervisor has the folder."""
    home.make()
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("already_supervised home=%s", home.root)
        return 1
    become_subreaper()
    supervisor = Supervisor(home, chaos_seed)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop.set)
    await supervisor.run()
    return 0


if __name__ == "__main__":
    log_to_stderr()
    root, *seed = sys.argv[1:]
    sys.exit(asyncio.run(supervise(Home(root=Path(root)), int(seed[0]) if seed else None)))
