"""One process that plays rehearsals beside the operator, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from fulcrum.controller.play_child import HEADER, MOST_FRAME_BYTES, environment

START_SECONDS: Final = 120.0
"""Deadline for the start of the process: 0.3 s on a free core, far longer on a busy one, as its priority is low."""
EXIT_SECONDS: Final = 5.0
"""How long to wait for the exit status and the last words of a process that closed its output."""
STDERR_BYTES: Final = 4096
"""How much of the end of stderr is kept for messages."""

T = TypeVar("T")
Reply = tuple[Any, str | None, float]
"""An answer, why there is none because of a defect or of its memory, and CPU seconds."""


class PlayError(RuntimeError):
    """No answer came. The message says why, for people."""


class PlayProcess:
    """One process that plays, beside the operator: at low priority, with bounded memory, at most half a core.

    It starts with the first question, and again with the next one after it ended.
    """

    def __init__(
        self,
        *,
        deadline_seconds: float = 30.0,
        memory_bytes: int = 512 << 20,
        share: float = 0.5,
        idle_seconds: float = 600.0,
        command: Sequence[str] = (sys.executable, "-m", "fulcrum.controller.play_child"),
        start_seconds: float = START_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Remember the limits.

        `deadline_seconds` is wall time for one question; the start of the process has `start_seconds` of its own.
        `share` is in cores. After `idle_seconds` without a question the process ends. `clock` and `sleep` measure and
        wait out the share.
        """
        self._deadline_seconds, self._start_seconds = deadline_seconds, start_seconds
        self._idle_seconds, self._share = idle_seconds, share
        self._command = (*command, str(memory_bytes), str(deadline_seconds))
        self._clock, self._sleep = clock, sleep
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Timeout] = set()
        self._child: _Child | None = None
        self._idle: asyncio.Task[None] | None = None
        self._not_before_seconds = clock()
        self._closed = False
        self.failures = 0
        """Questions that ended with PlayError; those that `close` ended do not count."""
        self.cpu_seconds = 0.0
        """Of all processes, their starts included. Where one was killed, its wall time, which is at least as long."""
        self.longest_wait_seconds = 0.0
        """From a call of `play` to its start: earlier questions, and the share."""

    async def play(self, question: Callable[[], T]) -> T:
        """Return what `question()` returns in the process; both are pickled. One at a time, others wait their turn.

        PlayError: no answer came in time, or the process failed; the next question gets a new process. Cancellation
        ends the process as well.
        """
        if self._closed:
            raise PlayError("rehearsals have ended")
        called_seconds = self._clock()
        try:
            async with asyncio.timeout(None) as until_closed:
                self._calls.add(until_closed)
                frame = _pickled(question)
                async with self._turn:
                    while (left_seconds := self._not_before_seconds - self._clock()) > 0:
                        await self._sleep(left_seconds)
                    self.longest_wait_seconds = max(self.longest_wait_seconds, self._clock() - called_seconds)
                    found: T = await self._play(frame)
                    return found
        except PlayError:
            self.failures += 1
            raise
        except TimeoutError:
            raise PlayError("rehearsals have ended") from None
        finally:
            self._calls.discard(until_closed)

    async def close(self) -> None:
        """End the process. Questions that wait or are played end with PlayError, and so do later ones."""
        self._closed = True
        while self._calls:
            self._calls.pop().reschedule(asyncio.get_running_loop().time())
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            await self._end()

    async def _play(self, frame: bytes) -> Any:
        if self._idle is not None:
            self._idle.cancel()
        began_seconds = self._clock()
        try:
            answer, failure, cpu_seconds = await self._ask(frame)
        except BaseException:
            # How much CPU it used is unknown; it plays in one thread, so the wall time is an upper bound.
            self._used(self._clock() - began_seconds, began_seconds)
            await self._end()
            raise
        self._used(cpu_seconds, began_seconds)
        self._idle = asyncio.create_task(self._end_when_idle())
        if failure is not None:
            raise PlayError(failure)
        return answer

    async def _ask(self, frame: bytes) -> Reply:
        """Ask the process, started if need be."""
        if self._child is not None and self._child.ended:
            await self._end()
        doing, seconds = "start", self._start_seconds
        try:
            if self._child is None:
                async with asyncio.timeout(seconds):
                    self._child = await _Child.start(self._command)
                    await self._child.ready()
            doing, seconds = "answer", self._deadline_seconds
            async with asyncio.timeout(seconds):
                return await self._child.ask(frame)
        except TimeoutError:
            raise PlayError(f"the process that plays did not {doing} within {seconds:g} s") from None

    def _used(self, cpu_seconds: float, began_seconds: float) -> None:
        self.cpu_seconds += cpu_seconds
        self._not_before_seconds = began_seconds + cpu_seconds / self._share

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._idle_seconds)
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()


class _Child:
    """A process that plays, and what it last said on stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._stderr_tail = b""
        self._listening = asyncio.create_task(self._listen())
        self._counted_seconds = 0.0

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Child:
        """Start the process; it is not ready yet. PlayError: the operating system refuses to."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(os.environ)
            )
        except OSError as error:
            raise PlayError(f"the process that plays cannot be started: {error}") from error
        return cls(process)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def ready(self) -> None:
        """Wait until the process can answer. PlayError: it ended instead."""
        await self._read()

    async def ask(self, frame: bytes) -> Reply:
        """Return the reply to a pickled question; its CPU seconds are those since the reply before, or since the start.

        PlayError: the process ended, or the reply cannot be read.
        """
        try:
            self._stdin.writelines((HEADER.pack(len(frame)), frame))
            await self._stdin.drain()
        except ConnectionError:
            raise PlayError(await self._why_ended()) from None
        answer, failure, cpu_seconds = await self._read()
        used_seconds, self._counted_seconds = cpu_seconds - self._counted_seconds, cpu_seconds
        return answer, failure, used_seconds

    async def end(self) -> None:
        """Kill the process, and reap it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._stdin.close()
        # asyncio reports the end only when the pipes have ended, too, and reads a full pipe no further by itself.
        await self._stdout.read()
        await self._listening
        await self._process.wait()

    async def _read(self) -> Reply:
        try:
            (length,) = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
            if length > MOST_FRAME_BYTES:
                raise PlayError(f"the process that plays sent no answer, but a frame of {length} bytes")
            frame = await self._stdout.readexactly(length)
        except asyncio.IncompleteReadError:
            raise PlayError(await self._why_ended()) from None
        try:
            match pickle.loads(frame):  # noqa: S301 (a process of ours wrote it)
                case (answer, str() | None as failure, float() as cpu_seconds):
                    return answer, failure, cpu_seconds
                case other:
                    why = f"found {type(other).__name__}"
        except Exception as error:  # noqa: BLE001 (a broken pickle raises anything)
            why = repr(error)
        raise PlayError(f"the answer cannot be read: {why}")

    async def _why_ended(self) -> str:
        """Return what is known of the end of a process that closed its output."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await asyncio.shield(self._listening)
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            how = "closed its output"
        elif code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            how = f"ended with code {code}"
        said = self._stderr_tail.decode(errors="replace").strip().splitlines()
        return f"the process that plays {how}" + (f": {said[-1]}" if said else "")

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(STDERR_BYTES):
            self._stderr_tail = (self._stderr_tail + chunk)[-STDERR_BYTES:]


def _pickled(question: Callable[[], object]) -> bytes:
    try:
        frame = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PlayError(f"the question cannot be sent: {error}") from error
    if len(frame) > MOST_FRAME_BYTES:
        raise PlayError(f"the question is too large: {len(frame) >> 20} MiB, limit {MOST_FRAME_BYTES >> 20} MiB")
    return frame
