"""The child process: output, last words, exits, stopping; small programs do what vLLM cannot be made to do."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from tests.machine import deadline_seconds

from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.engine_process import EngineProcess, digest


def engine(program: str, output: io.BytesIO | None = None) -> EngineProcess:
    command = EngineCommand(
        argv=(sys.executable, "-u", "-c", textwrap.dedent(program)), environment={"PATH": os.environ["PATH"]}
    )
    return EngineProcess(command, output=output or io.BytesIO())


async def test_output_goes_through_and_the_last_lines_are_kept() -> None:
    output = io.BytesIO()
    process = engine(
        "import sys\nfor i in range(1000): print('line', i)\nsys.stderr.write('the end'); sys.exit(3)", output
    )
    await process.start()
    assert await process.wait() == 3
    words = digest(await process.last_lines())
    assert not process.alive
    assert output.getvalue().count(b"\n") == 1000
    assert output.getvalue().endswith(b"the end")
    assert words.endswith("line 999\nthe end")


async def test_killed_is_a_negative_code() -> None:
    process = engine("import time; time.sleep(600)")
    await process.start()
    assert process.alive
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


async def test_nothing_to_execute() -> None:
    process = EngineProcess(EngineCommand(argv=("/nonexistent/python",), environment={}), output=io.BytesIO())
    with pytest.raises(OSError, match="nonexistent"):
        await process.start()
    assert not process.alive
    await process.stop(grace_seconds=1)
    assert digest(await process.last_lines()) == ""


async def test_stop_is_sigterm_first() -> None:
    output = io.BytesIO()
    process = engine(
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop"), sys.exit(0)))
        print("up")
        time.sleep(600)
        """,
        output,
    )
    await process.start()
    await until(lambda: b"up" in output.getvalue())
    await process.stop(grace_seconds=60)
    assert await process.wait() == 0
    assert output.getvalue().endswith(b"asked to stop\n")


async def test_stop_kills_what_does_not_listen() -> None:
    output = io.BytesIO()
    process = engine(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)", output
    )
    await process.start()
    await until(lambda: b"up" in output.getvalue())
    await process.stop(grace_seconds=0.2)
    assert await process.wait() == -signal.SIGKILL


async def test_it_stays_in_our_process_group() -> None:
    process = engine("import os; print(os.getpgid(0))", output := io.BytesIO())
    await process.start()
    await process.wait()
    await process.last_lines()
    assert int(output.getvalue()) == os.getpgid(0)


async def test_children_of_the_main_module_die_with_their_parent(tmp_path: Path) -> None:
    """vLLM's shape: a main module that arms itself and makes ranks with `spawn`, from threads that end before them.

    The end of such a thread kills no rank (0.33: `MultiprocExecutor._start_workers_concurrently`); the parent's does.
    """
    (tmp_path / "engine_like.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, time
            import threading
            from fulcrum_worker.parent_death import end_with_parent
            def work(number):
                time.sleep(number / 4)
                print("child", os.getpid(), flush=True)
                time.sleep(600)
            if __name__ == "__mp_main__":
                end_with_parent(os.getppid())
            if __name__ == "__main__":
                for number in (1, 2):
                    start = multiprocessing.get_context("spawn").Process(target=work, args=(number,)).start
                    starting = threading.Thread(target=start)
                    starting.start()
                    starting.join()
                print("threads are gone", flush=True)
                time.sleep(600)
            """
        )
    )
    output = io.BytesIO()
    process = EngineProcess(
        EngineCommand(
            argv=(sys.executable, "-m", "engine_like"),
            environment={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        ),
        output=output,
    )
    await process.start()
    await until(lambda: output.getvalue().count(b"child") == 2 and output.getvalue().endswith(b"\n"))
    children = [psutil.Process(int(pid)) for pid in re.findall(rb"child (\d+)", output.getvalue())]
    assert all(child.is_running() for child in children)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    for child in children:
        await until(lambda child=child: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + deadline_seconds(seconds)
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


LOG = """\
(EngineCore pid=2) INFO 11-21 03:28:20 [core.py:133] Initializing a V1 LLM engine
(EngineCore pid=2) ERROR 11-21 03:28:22 [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-21 03:28:22 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-21 03:28:22 [core.py:1510]   File "core.py", line 1451, in run_engine_core
(EngineCore pid=2) ERROR 11-21 03:28:22 [core.py:1510]     raise ValueError(
(EngineCore pid=2) ERROR 11-21 03:28:22 [core.py:1510] ValueError: No common block size for 16.
Process EngineCore:
Traceback (most recent call last):
  File "process.py", line 314, in _bootstrap
    self.run()
ValueError: No common block size for 16.
Traceback (most recent call last):
  File "api_server.py", line 58, in <module>
RuntimeError: Engine core initialization failed. See root cause above."""


def test_digest_keeps_the_cause_and_the_consequence() -> None:
    assert digest(LOG.splitlines()).splitlines() == [
        "Initializing a V1 LLM engine",
        "EngineCore failed to start.",
        "ValueError: No common block size for 16.",
        "Process EngineCore:",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def test_digest_keeps_the_last_figures_only() -> None:
    figures = [
        f"(APIServer pid=1) INFO 11-21 16:04:{second} [loggers.py:335] Engine 000: {second}.5 tokens/s, Running: 1 reqs"
        for second in (12, 22, 32)
    ]
    assert digest(["INFO:     Application startup complete.", *figures, "Killed"]).splitlines() == [
        "INFO:     Application startup complete.",
        "Engine 000: 32.5 tokens/s, Running: 1 reqs",
        "Killed",
    ]


def test_digest_fits() -> None:
    lines = [f"{'x' * number} " + "ä" * 300 for number in range(100)]
    text = digest(lines, limit_bytes=1500)
    assert 1000 < len(text.encode()) <= 1500
    assert text.splitlines()[-1].startswith("x" * 99)
    assert digest([]) == ""
