"""vLLM as a child process: its output goes through, its last lines are kept, its end is seen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from collections import deque
from typing import BinaryIO, Final

from fulcrum.api.worker import Stage
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.expert_balance import balance_after
from fulcrum_worker.parent_death import ENV_PARENT
from fulcrum_worker.start_progress import stage_after

_KEPT_LINES: Final = 200
_DIGEST_BYTES: Final = 1500
"""Kubernetes keeps the last 2048 bytes of a log as the termination message; the digest fits in it with its heading."""
_MOST_KINDS: Final = 10_000
"""Kinds of lines that are remembered; lines beyond them count as known."""
_LOG_PREFIX: Final = re.compile(r"^(\(\w+ pid=\d+\) )?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] ?)?")
_NUMBER: Final = re.compile(r"\d[\d.,]*")
_NOISE: Final = re.compile(r"^\s|^Traceback |^During handling|^The above exception|^$|^File ")


class EngineProcess:
    """One run of vLLM. Started once; stays in the agent's process group, so a signal to the group kills it, too."""

    def __init__(self, command: EngineCommand, *, output: BinaryIO | None = None) -> None:
        self._command = command
        self._output = sys.stdout.buffer if output is None else output
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._pump: threading.Thread | None = None
        self._kinds: set[int] = set()
        self.stage = Stage.IMPORTS
        """What vLLM does, by its log; it says nothing of what comes after the KV cache."""
        self.expert_balance: float | None = None
        """See `expert_balance`; None: vLLM logs none."""

    async def start(self) -> None:
        """Starts vLLM; raises OSError when there is nothing to execute."""
        environment = {**self._command.environment, ENV_PARENT: str(os.getpid())}
        reader, writer = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command.argv, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=writer, stderr=writer
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        # A thread, so that a log reader that stalls us stalls vLLM's output and not the probes.
        self._pump = threading.Thread(target=self._pass_through, args=(reader,), daemon=True, name="engine-output")
        self._pump.start()

    def _pass_through(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as pipe:
            rest = b""
            while chunk := pipe.read(1 << 16):
                with contextlib.suppress(OSError, ValueError):  # our own stdout is gone: keep draining for vLLM's sake
                    self._output.write(chunk)
                    self._output.flush()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._heard(line.decode(errors="replace").rstrip("\r"))
                rest = rest[-(1 << 16) :]
            if rest:
                self._heard(rest.decode(errors="replace"))

    def _heard(self, line: str) -> None:
        self._lines.append(line)
        self.stage = stage_after(line, self.stage)
        self.expert_balance = balance_after(line, self.expert_balance)
        if len(self._kinds) < _MOST_KINDS:
            # vLLM repeats that it waits, with other numbers: that is no progress.
            self._kinds.add(hash(_NUMBER.sub("0", without_prefix(line))))

    @property
    def new_lines(self) -> int:
        """Lines so far that differ from all before them in more than numbers."""
        return len(self._kinds)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> int:
        """Waits until vLLM has ended; returns its exit code, -N when signal N ended it."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, *, grace_seconds: float) -> None:
        """Ends vLLM: SIGTERM, and SIGKILL when it is still there after the grace. Its children die with it."""
        if self._process is None:
            return
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), grace_seconds)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await self._finish_output()

    async def _finish_output(self) -> None:
        if self._pump is not None:
            # The pipe closes when the last of vLLM's processes has gone; one that hangs must not keep the agent.
            await asyncio.to_thread(self._pump.join, 2.0)

    async def last_lines(self) -> list[str]:
        """What vLLM said in the end, line by line; call it after vLLM's end."""
        await self._finish_output()
        return list(self._lines)


def without_prefix(line: str) -> str:
    """A line of vLLM's log without process, time and place."""
    return _LOG_PREFIX.sub("", line)


def digest(lines: list[str], limit_bytes: int = _DIGEST_BYTES) -> str:
    """The last lines that say something: without log prefixes, stack frames and repetitions, at most `limit_bytes`.

    vLLM logs the cause in its engine process and then two more tracebacks of processes that only notice; with their
    frames left out, cause and consequence fit together. Of lines that differ in their numbers only, such as vLLM's
    figures of every ten seconds, the last one stays: they would push out everything else.
    """
    said: dict[str, str] = {}
    for line in lines:
        text = without_prefix(line).rstrip()[:400]
        kind = _NUMBER.sub("0", text)
        if not _NOISE.match(text) and said.get(kind) != text:
            said.pop(kind, None)
            said[kind] = text
    kept: list[str] = []
    for text in reversed(said.values()):
        limit_bytes -= len(text.encode()) + 1
        if limit_bytes < 0:
            break
        kept.append(text)
    return "\n".join(reversed(kept))
