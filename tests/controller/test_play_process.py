"""Rehearsals in a process of their own: real questions to a real process, and processes that fail in every way."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import uvloop
from tests.machine import deadline_seconds, eventually, wait_until
from tests.rehearsal.worlds import make_seen, make_stage, split, watch
from tests.simulation.worlds import poisson

from fulcrum.controller.play_process import PlayError, PlayProcess
from fulcrum.rehearsal.rehearse import Answer, Question, rehearse

NOW = 45.0
LONG_SECONDS = deadline_seconds(60.0)
"""At low priority a question takes long on a busy machine."""
DEFECT: Any = "no layout"


@cache
def question(seed: int = 0) -> Question:
    """One of eight workers prefills 2 requests/s that take it 0.73 s each."""
    load = poisson(rate=2.0, count=90, prompt=4000, output=12, seed=21, spread=0.3)
    load = replace(load, arrival_seconds=load.arrival_seconds * NOW / (load.arrival_seconds[-1] + 0.01))
    ((_, seen),), _ = watch(load, split(1, 7), [NOW])
    return Question(stage=make_stage(split(1, 7)), seen=seen, since=0.0, now=NOW, flexible=["p"], seed=seed)


def of(one: Question) -> Callable[[], Answer | None]:
    """What the process is asked."""
    return partial(rehearse, one)


def defective() -> Question:
    """One that `rehearse` stumbles over."""
    return replace(question(), stage=replace(question().stage, standing=DEFECT))


def large(requests: int) -> Question:
    """One whose columns take about 28 bytes a request."""
    return replace(question(), seen=make_seen(np.arange(requests) * NOW / requests))


@asynccontextmanager
async def playing(**others: Any) -> AsyncIterator[PlayProcess]:
    """A process without a share, which would have tests wait."""
    process = PlayProcess(**({"share": float("inf"), "deadline_seconds": LONG_SECONDS} | others))
    try:
        yield process
    finally:
        await process.close()


def pid_of(process: PlayProcess) -> int:
    assert process._child is not None
    return process._child._process.pid


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def gone(pid: int) -> bool:
    """No zombie, either, unless it is another process's to reap."""
    if not psutil.pid_exists(pid):
        return True
    try:
        found = psutil.Process(pid)
        return found.status() == psutil.STATUS_ZOMBIE and found.ppid() != os.getpid()
    except psutil.NoSuchProcess:
        return True


async def asked(process: PlayProcess, one: Question) -> tuple[asyncio.Task[Answer | None], int]:
    """A question in the middle of its plays, and the process that plays it."""
    if process._child is None:
        await process.play(of(question()))
    found = psutil.Process(pid_of(process))
    before_seconds = found.cpu_times().user
    asking = asyncio.create_task(process.play(of(one)))
    await eventually(lambda: found.cpu_times().user > before_seconds + 0.1)
    assert not asking.done()
    return asking, found.pid


def odd(folder: Path, *lines: str) -> tuple[str, str]:
    """The command of a process that is the real one but for these lines."""
    script = folder / "odd.py"
    script.write_text("\n".join((
        "import os, pickle, sys, time",
        "import fulcrum.controller.play_child as child",
        "import fulcrum.rehearsal.rehearse as module",
        "real = module.rehearse",
        *lines,
        "child.main()",
    )))  # fmt: skip
    return sys.executable, str(script)


async def test_the_process_answers_what_rehearse_answers() -> None:
    async with playing() as process:
        expected = [rehearse(question(seed)) for seed in (0, 1)]
        found = [await process.play(of(question(seed))) for seed in (0, 1)]
        assert found == expected
        assert repr(found) == repr(expected), "bit for bit"
        assert None not in found
        assert process.failures == 0
        assert process.cpu_seconds > 0.0


async def test_too_little_is_known() -> None:
    async with playing() as process:
        assert await process.play(of(replace(question(), since=NOW))) is None
        assert process.failures == 0


async def test_the_process_has_low_priority_little_memory_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("FULCRUM_TOKEN", "secret")
    async with playing(memory_bytes=512 << 20) as process:
        await process.play(of(question()))
        found = psutil.Process(pid_of(process))
        assert found.nice() == 19
        assert found.rlimit(resource.RLIMIT_DATA) == (512 << 20, 512 << 20)
        environment = found.environ()
        assert environment.keys() <= {
            "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONSAFEPATH",
            "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LC_CTYPE",
        }  # fmt: skip
        assert environment["OPENBLAS_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "1"


async def test_the_process_loads_no_kubernetes_client(tmp_path: Path) -> None:
    command = odd(
        tmp_path,
        "answer = child._answer",
        "def told(frame, limit):",
        "    answer(frame, limit)",
        "    return child._reply(None, ' '.join({name.partition('.')[0] for name in sys.modules}))",
        "child._answer = told",
    )
    async with playing(command=command) as process:
        with pytest.raises(PlayError) as told:
            await process.play(of(question()))
    loaded = set(str(told.value).split())
    assert {"fulcrum", "numpy"} <= loaded
    assert not loaded & {"kopf", "kubernetes", "aiohttp", "asyncio", "statsmodels", "scipy"}


async def test_a_stray_print_is_no_answer(tmp_path: Path) -> None:
    command = odd(
        tmp_path,
        "def loud(question):",
        "    print('stray' * 10_000, flush=True)",
        "    os.write(1, b'more')",
        "    os.system('echo and more')",
        "    return real(question)",
        "module.rehearse = loud",
    )
    async with playing(command=command) as process:
        assert await process.play(of(question())) == rehearse(question())


async def test_a_defect_is_told_and_the_process_goes_on() -> None:
    async with playing() as process:
        await process.play(of(question()))
        pid = pid_of(process)
        with pytest.raises(PlayError, match=r"^AttributeError: .*no attribute.* \(\w+\.py:\d+\)$"):
            await process.play(of(defective()))
        assert await process.play(of(question())) == rehearse(question())
        assert pid_of(process) == pid
        assert process.failures == 1


async def test_a_question_that_cannot_be_sent() -> None:
    async with playing() as process:
        await process.play(of(question()))
        pid = pid_of(process)
        with pytest.raises(PlayError, match=r"cannot be sent: .*dict_keys"):
            await process.play(of(replace(question(), flexible={"p": 1}.keys())))
        assert await process.play(of(question())) == rehearse(question())
        assert pid_of(process) == pid
        assert process.failures == 1


@pytest.mark.parametrize(
    ("memory_mib", "goes_on"), [(384, True), (192, False)], ids=["while it plays", "while it reads the question"]
)
async def test_out_of_memory(memory_mib: int, goes_on: bool) -> None:
    async with playing(memory_bytes=memory_mib << 20) as process:
        await process.play(of(question()))
        pid = pid_of(process)
        with pytest.raises(PlayError, match=rf"out of memory \(limit: {memory_mib} MiB\)"):
            await process.play(of(large(5_000_000)))
        assert gone(pid) is not goes_on
        assert await process.play(of(question())) == rehearse(question())


async def test_a_limit_in_which_nothing_can_start() -> None:
    async with playing(memory_bytes=8 << 20) as process:
        with pytest.raises(PlayError, match="process that plays"):
            await process.play(of(question()))


async def test_a_process_that_is_killed_while_it_plays_is_replaced() -> None:
    async with playing() as process:
        asking, pid = await asked(process, question(1))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PlayError, match=r"was ended by signal 9 \(Killed\)"):
            await asking
        assert not psutil.pid_exists(pid), "reaped"
        assert process.failures == 1
        assert await process.play(of(question())) == rehearse(question())


async def test_a_process_that_hangs_is_replaced_at_the_deadline() -> None:
    async with playing() as process:
        await process.play(of(question()))
        pid, used_seconds = pid_of(process), process.cpu_seconds
        os.kill(pid, signal.SIGSTOP)
        process._deadline_seconds = 0.5
        with pytest.raises(PlayError, match=r"did not answer within 0\.5 s"):
            await process.play(of(question(1)))
        assert not psutil.pid_exists(pid), "reaped"
        assert process.cpu_seconds >= used_seconds + 0.5, "all of it could have been CPU time"
        process._deadline_seconds = LONG_SECONDS
        assert await process.play(of(question())) == rehearse(question())


async def test_a_process_that_ended_between_questions_costs_no_question() -> None:
    async with playing() as process:
        await process.play(of(question()))
        pid, child = pid_of(process), process._child
        assert child is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: child.ended)
        assert await process.play(of(question())) == rehearse(question())
        assert pid_of(process) != pid


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("child._answer = lambda *_: b'nonsense'", "cannot be read: UnpicklingError"),
        ("child._answer = lambda *_: pickle.dumps('yes')", "cannot be read: found str"),
        ("child._answer = lambda *_: pickle.dumps((1, 2, 0.0))", "cannot be read: found tuple"),
        ("child._write = lambda out, frame: out.write(b'x' * 1_000_000)", r"a frame of \d+ bytes"),
        ("child._answer = lambda *_: sys.exit('x' * 100_000 + '\\nlast words')", "ended with code 1: last words$"),
        ("child._answer = lambda *_: [os.closerange(1, 100), time.sleep(1000)]", "closed its output"),
        ("child._answer = lambda *_: os.abort()", r"was ended by signal 6 \(Aborted\)"),
        ("raise ValueError('no such thing')", "ended with code 1: ValueError: no such thing$"),
    ],
)
async def test_odd_processes(code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = why == "closed its output"
    monkeypatch.setattr("fulcrum.controller.play_process.EXIT_SECONDS", 0.5 if stays else LONG_SECONDS)
    before = children()
    async with playing(command=odd(tmp_path, code)) as process:
        for _ in range(2):
            with pytest.raises(PlayError, match=why):
                await process.play(of(question()))
            assert process._child is None
        assert process.failures == 2
    assert children() == before


async def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    before = children()
    async with playing(command=[str(tmp_path / "none")]) as process:
        with pytest.raises(PlayError, match=r"cannot be started: .*No such file"):
            await process.play(of(question()))
    async with playing(command=odd(tmp_path, "time.sleep(1000)"), start_seconds=0.5) as process:
        with pytest.raises(PlayError, match=r"did not start within 0\.5 s"):
            await process.play(of(question()))
    assert children() == before


async def test_a_cancelled_question_leaves_no_answer_behind() -> None:
    async with playing() as process:
        asking, pid = await asked(process, question(1))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not psutil.pid_exists(pid)
        assert await process.play(of(question())) == rehearse(question())
        assert process.failures == 0


async def test_cancellation_while_it_starts_leaves_no_process() -> None:
    before = children()
    async with playing() as process:
        for steps in range(10):
            asking = asyncio.create_task(process.play(of(question())))
            for _ in range(steps):
                await asyncio.sleep(0.0 if steps < 7 else 0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await eventually(lambda: children() == before)
        assert await process.play(of(question())) == rehearse(question())


async def test_several_callers_take_turns() -> None:
    async with playing() as process:
        questions = (question(), defective(), question(), question(1))
        asking = [asyncio.create_task(process.play(of(each))) for each in questions]
        asking[2].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert (found[0], found[3]) == (rehearse(question()), rehearse(question(1)))
        assert isinstance(found[1], PlayError)
        assert isinstance(found[2], asyncio.CancelledError)
        assert process.longest_wait_seconds > 0.0


class Clock:
    """Goes on during sleeps only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await self.gate.wait()
        self.now += seconds

    def given(self) -> dict[str, Callable[..., Any]]:
        return {"clock": lambda: self.now, "sleep": self.sleep}


async def test_half_a_core_on_average() -> None:
    clock = Clock()
    async with playing(share=0.5, **clock.given()) as process:
        await process.play(of(question()))
        assert clock.sleeps == []
        first_seconds = process.cpu_seconds
        await process.play(of(question()))
        assert clock.sleeps == [pytest.approx(2.0 * first_seconds)]
        assert process.longest_wait_seconds == pytest.approx(2.0 * first_seconds)
        second_seconds = process.cpu_seconds - first_seconds
        assert 0.0 < second_seconds < first_seconds, "the first question pays for the start as well"
        clock.now += 2.0 * second_seconds + 0.001
        await process.play(of(question()))
        assert len(clock.sleeps) == 1


async def test_a_question_that_waits_for_the_share_can_be_cancelled() -> None:
    clock = Clock()
    async with playing(share=0.5, **clock.given()) as process:
        await process.play(of(question()))
        pid = pid_of(process)
        clock.gate.clear()
        asking = asyncio.create_task(process.play(of(question())))
        await eventually(lambda: clock.sleeps)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        clock.gate.set()
        assert await process.play(of(question())) == rehearse(question())
        assert pid_of(process) == pid, "it played nothing meanwhile"


async def test_close_ends_all_questions_and_the_process() -> None:
    clock = Clock()
    async with playing(share=0.5, **clock.given()) as process:
        await process.play(of(question()))
        pid = pid_of(process)
        clock.gate.clear()
        asking = [asyncio.create_task(process.play(of(question()))) for _ in range(2)]
        await eventually(lambda: clock.sleeps)
        await process.close()
        assert not psutil.pid_exists(pid)
        for each in asking:
            with pytest.raises(PlayError, match="have ended"):
                await each
        with pytest.raises(PlayError, match="have ended"):
            await process.play(of(question()))
        await process.close()
        assert process.failures == 0


async def test_close_ends_a_question_that_is_played() -> None:
    async with playing() as process:
        asking, pid = await asked(process, question(1))
        await process.close()
        assert not psutil.pid_exists(pid)
        with pytest.raises(PlayError, match="have ended"):
            await asking


async def test_an_idle_process_ends() -> None:
    async with playing(idle_seconds=0.1) as process:
        await process.play(of(question()))
        pid = pid_of(process)
        await eventually(lambda: process._child is None and not psutil.pid_exists(pid))
        assert await process.play(of(question())) == rehearse(question())


async def test_an_idle_process_ends_after_a_question_was_cancelled_before_its_start() -> None:
    clock = Clock()
    async with playing(idle_seconds=1.0, share=0.5, **clock.given()) as process:
        await process.play(of(question()))
        clock.gate.clear()
        asking = asyncio.create_task(process.play(of(question())))
        await eventually(lambda: clock.sleeps)
        asking.cancel()
        await eventually(lambda: process._child is None)


OPERATOR = """
import asyncio, pathlib, pickle, sys
from fulcrum.controller.play_process import PlayProcess

async def main(question, command):
    process = PlayProcess(deadline_seconds=3.0, **({"command": command} if command else {}))
    playing = asyncio.create_task(process.play(question))
    while process._child is None:
        await asyncio.sleep(0.01)
    print(process._child._process.pid, flush=True)
    await playing
    print("played", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()), sys.argv[2:]))
"""


@pytest.mark.parametrize("plays", [False, True], ids=["idle", "playing"])
def test_the_process_does_not_outlive_the_operator(plays: bool, tmp_path: Path) -> None:
    (tmp_path / "question").write_bytes(pickle.dumps(of(question())))
    command: tuple[str, ...] = ()
    if plays:
        lines = ("def hangs(_):", f"    open({str(tmp_path / 'hangs')!r}, 'w').close()", "    while True: pass")
        command = odd(tmp_path, *lines, "module.rehearse = hangs")
    with subprocess.Popen(
        [sys.executable, "-c", OPERATOR, str(tmp_path / "question"), *command], stdout=subprocess.PIPE, text=True
    ) as operator:
        assert operator.stdout is not None
        pid = int(operator.stdout.readline())
        if plays:
            wait_until((tmp_path / "hangs").exists)
        else:
            assert operator.stdout.readline() == "played\n"
        operator.kill()
    wait_until(lambda: gone(pid), what="the process ends itself", seconds=20.0)


def test_it_runs_in_the_operators_loop() -> None:
    async def main() -> None:
        async with playing() as process:
            assert await process.play(of(question())) == rehearse(question())
            for cancelled in (False, True):
                asking, pid = await asked(process, question(1))
                if cancelled:
                    asking.cancel()
                else:
                    os.kill(pid, signal.SIGKILL)
                with pytest.raises(asyncio.CancelledError if cancelled else PlayError):
                    await asking
                assert not psutil.pid_exists(pid)
                assert await process.play(of(question())) == rehearse(question())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
