"""The process that plays rehearsals: questions come on stdin, answers go to stdout. It ends when stdin ends.

`PlayProcess` starts it as `python -m fulcrum.controller.play_child MEMORY_BYTES DEADLINE_SECONDS`. A frame is `HEADER`
(length in bytes) and a pickle: on stdin a callable; on stdout what it returned or None, a failure or None, and CPU
seconds since the process began. The first frame on stdout says that the process is ready: it has neither answer nor
failure.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

HEADER: Final = struct.Struct(">Q")
MOST_FRAME_BYTES: Final = 256 << 20
"""Largest question or answer. The requests that all gateways of a cluster remember are tens of MiB."""
GRACE_SECONDS: Final = 5.0
"""The process ends itself so long after the deadline. The operator kills it before, unless the operator is gone."""
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "VIRTUAL_ENV")


def environment(operator: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process from the operator's, whose credentials it does not get.

    It imports what the operator imports. One thread for BLAS: the share of a core is counted for one.
    """
    kept = {name: operator[name] for name in _KEPT if name in operator}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return kept | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Answer questions until stdin ends, or until the operator no longer reads the answers."""
    memory_bytes, deadline_seconds = int(sys.argv[1]), float(sys.argv[2])
    # Ctrl-C in a terminal is for the operator, which then ends this process. Not `setsid`: Linux divides CPU between
    # sessions (autogroup), and `nice` would no longer put the operator first.
    os.setpgrp()
    os.nice(19)
    # Not RLIMIT_AS, which counts mapped libraries as well.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    answers = _answers()
    # Only now: what it imports counts against the limit.
    import fulcrum.rehearsal.case  # noqa: F401

    with suppress(BrokenPipeError):
        _write(answers, _reply(None, None))
        while (frame := _read(sys.stdin.buffer, memory_bytes)) is not None:
            # The default action of SIGALRM ends the process, whatever code it is in.
            signal.setitimer(signal.ITIMER_REAL, deadline_seconds + GRACE_SECONDS)
            _write(answers, _answer(frame, memory_bytes))
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _answers() -> BinaryIO:
    """Return the real stdout, and point file descriptor 1 to stderr: a stray print must not get between frames."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _answer(frame: bytes, memory_bytes: int) -> bytes:
    """Return the reply to a pickled question. A failure of this question is part of the reply."""
    try:
        return _reply(pickle.loads(frame)(), None)  # noqa: S301 (the operator wrote it)
    except MemoryError:
        failure = _out_of_memory(memory_bytes)
    except Exception as error:  # noqa: BLE001 (the edge of one question: the process answers the next one)
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = traceback.format_exception_only(error)[-1].strip()
        failure = f"{line} ({Path(place.filename).name}:{place.lineno})"
    return _reply(None, failure)


def _reply(answer: object, failure: str | None) -> bytes:
    return pickle.dumps((answer, failure, time.process_time()), pickle.HIGHEST_PROTOCOL)


def _read(questions: BinaryIO, memory_bytes: int) -> bytes | None:
    """Return the next frame; None: stdin has ended."""
    header = questions.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    try:
        frame = questions.read(length)
    except MemoryError:
        sys.exit(_out_of_memory(memory_bytes))
    return frame if len(frame) == length else None


def _write(answers: BinaryIO, frame: bytes) -> None:
    answers.write(HEADER.pack(len(frame)))
    answers.write(frame)
    answers.flush()


def _out_of_memory(memory_bytes: int) -> str:
    return f"out of memory (limit: {memory_bytes >> 20} MiB)"


if __name__ == "__main__":
    main()
