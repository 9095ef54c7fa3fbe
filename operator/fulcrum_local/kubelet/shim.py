"""Parent of one container process: it keeps the log, the exit status and the process tree together.

Run as `python -I -S shim.py` with its configuration as JSON on stdin; standard library only, so that it is small and
starts fast. It outlives the kubelet, which finds it again by pid and start time. Files that it writes into `directory`:
`started.json` once the program runs, `log` (CRI format, rotated once to `log.1`) and `exit.json` when all is over.

SIGTERM is passed on to the main process; SIGUSR1 kills the whole tree; with SIGUSR2 the CPU limit begins. As a
sub-reaper it inherits every orphan below it, so nothing that the container started survives its main process, also not
what moved to a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fulcrum_local.kubelet.cpu_limit import CpuLimit

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINE_BYTES = 16384
_READ_BYTES = 65536


class Log:
    """One log file in CRI format: `<RFC 3339 nanoseconds> <stdout|stderr> <F|P> <text>`."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._rest: dict[bytes, bytes] = {}
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, stream: bytes, chunk: bytes) -> None:
        """Append what came on `stream`; a line without its end waits for it, up to 16 KiB."""
        *lines, rest = (self._rest.get(stream, b"") + chunk).split(b"\n")
        prefix = _now() + b" " + stream
        records = [prefix + b" F " + line + b"\n" for line in lines]
        while len(rest) > _LINE_BYTES:
            records.append(prefix + b" P " + rest[:_LINE_BYTES] + b"\n")
            rest = rest[_LINE_BYTES:]
        self._rest[stream] = rest
        if records:
            self._append(b"".join(records))

    def close(self) -> None:
        """Write out lines that never got their end."""
        for stream, rest in self._rest.items():
            if rest:
                self._append(_now() + b" " + stream + b" F " + rest + b"\n")
        os.close(self._fd)

    def _append(self, record: bytes) -> None:
        if self._size and self._size + len(record) > self._limit_bytes:
            os.close(self._fd)
            os.rename(self._path, self._path + ".1")  # noqa: PTH104 - pathlib would double the start-up time
            self._open()
        with contextlib.suppress(OSError):  # a full disk must not stop the container
            self._size += os.write(self._fd, record)


class Pipes:
    """(read end, write end) of a container's output, and of what its start has to report."""

    def __init__(self) -> None:
        self.out = os.pipe()
        self.err = os.pipe()
        self.report = os.pipe()

    def close_write_ends(self) -> None:
        for _, write_end in (self.out, self.err, self.report):
            os.close(write_end)


def _now() -> bytes:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % nanoseconds


def _save(directory: str, name: str, content: dict[str, object]) -> None:
    """Write a file that is there whole or not at all."""
    path = f"{directory}/{name}"
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(fd, json.dumps(content).encode())
    os.close(fd)
    os.rename(path + ".new", path)  # noqa: PTH104 - as above


def _children() -> list[int]:
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123 - as above
        return [int(child) for child in file.read().split()]


def _kill_tree(main: int | None) -> None:
    """SIGKILL the group of `main` and every child; orphans of those become our children."""
    if main is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(main, signal.SIGKILL)
    for child in _children():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _reap_all() -> None:
    """Kill and reap until nothing is left below us (a process that the kernel holds is given up after ten seconds)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        _kill_tree(None)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _exec(config: dict[str, object], libc: ctypes.CDLL, parent: int, pipes: Pipes) -> None:
    """In the child: become the program, or report why not. Does not return."""
    step = "setsid"
    try:
        os.setsid()
        # Without its shim a container has no log and no exit status: it ends with it.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(137)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(pipes.out[1], 1)
        os.dup2(pipes.err[1], 2)
        argv, env = config["argv"], config["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        step = f"chdir {config['cwd']}"
        os.chdir(str(config["cwd"]))
        step = f'exec "{argv[0]}"'
        os.execvpe(argv[0], argv, env)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        os.write(pipes.report[1], f"{step}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _cpu_limit(main: int, config: dict[str, object]) -> CpuLimit | None:
    cores = config.get("cpuLimit")
    if not isinstance(cores, int | float):
        return None
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - as above; isolated mode leaves our own folder out
    limit: CpuLimit = importlib.import_module("cpu_limit").CpuLimit(main, cores)
    return limit


def _serve(log: Log, streams: dict[int, bytes], pidfd: int, woken: int, limit: CpuLimit | None) -> None:
    """Copy output to the log until the main process has ended and what it wrote is read. `woken` is readable once the
    limit begins."""
    poll = select.poll()
    for fd in (*streams, pidfd, woken):
        poll.register(fd, select.POLLIN)
    ended = limited = False
    tick_at = time.monotonic()
    while not ended:
        wait_seconds: float | None = None
        if limit is not None and limited:
            if (now := time.monotonic()) >= tick_at:
                tick_at = now + limit.tick()
            wait_seconds = tick_at - now
        for fd, _ in poll.poll(None if wait_seconds is None else max(0.0, wait_seconds) * 1000):
            if fd == pidfd:
                ended = True
            elif fd == woken:
                limited = True
                poll.unregister(fd)
            elif not _copy(log, fd, streams[fd]):
                poll.unregister(fd)
    if limit is not None:
        limit.release()


def _copy(log: Log, fd: int, stream: bytes) -> bool:
    """One read into the log; False at the end of the stream."""
    try:
        chunk = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return True
    if chunk:
        log.write(stream, chunk)
    return bool(chunk)


def _drain(log: Log, streams: dict[int, bytes]) -> None:
    for fd, stream in streams.items():
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(fd, _READ_BYTES):
                log.write(stream, chunk)


def _install_signals(main: list[int], limited: int) -> set[signal.Signals]:
    """SIGTERM and SIGUSR1 for the process in `main`, blocked until it runs: a child that has not reset its handlers yet
    would lose them. SIGUSR2 writes to `limited`, once or more often."""
    waiting = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, waiting)

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        for child in main:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def on_kill(_signal: int, _frame: FrameType | None) -> None:
        _kill_tree(main[0] if main else None)

    def on_limit(_signal: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(limited, b".")

    signal.signal(signal.SIGUSR2, on_limit)
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGUSR1, on_kill)
    return waiting


def _run(log: Log, pipes: Pipes, main: list[int], woken: int, config: dict[str, object]) -> dict[str, object]:
    """From the running program to the end of everything below it."""
    streams = {pipes.out[0]: b"stdout", pipes.err[0]: b"stderr"}
    for fd in streams:
        os.set_blocking(fd, False)
    _serve(log, streams, os.pidfd_open(main[0]), woken, _cpu_limit(main[0], config))
    finished_at = _now().decode()
    _kill_tree(main[0])  # before it is reaped: until then its group id cannot be another process group's
    _, wait_status = os.waitpid(main.pop(), 0)
    _reap_all()
    _drain(log, streams)
    log.close()
    code = os.waitstatus_to_exitcode(wait_status)
    number = max(0, -code)
    return {"exitCode": 128 + number if number else code, "signal": number, "finishedAt": finished_at}


def main() -> int:
    """Run one container; 0 when `exit.json` was written."""
    config = json.loads(sys.stdin.buffer.read())
    directory = str(config["directory"])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    main: list[int] = []
    woken, limited = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    waiting = _install_signals(main, limited)
    pipes = Pipes()
    parent = os.getpid()
    started_at = _now().decode()
    child = os.fork()
    if child == 0:
        _exec(config, libc, parent, pipes)
    pipes.close_write_ends()
    error = os.read(pipes.report[0], 4096).decode(errors="replace")
    if error:
        os.waitpid(child, 0)
        record: dict[str, object] = {"exitCode": 128, "signal": 0, "finishedAt": _now().decode(), "error": error}
    else:
        _save(directory, "started.json", {"pid": child, "startedAt": started_at})
        os.write(1, b"started\n")
        os.dup2(null, 1)
        main.append(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waiting)
        record = _run(Log(f"{directory}/log", int(config["logBytes"])), pipes, main, woken, config)
    _save(directory, "exit.json", {**record, "startedAt": started_at})
    return 0


if __name__ == "__main__":
    sys.exit(main())
