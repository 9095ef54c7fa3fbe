"""Processes that begin with what their parent has imported, in place of spawned ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.machine import deadline_seconds
from tests.worker_image.agents import alive

pytestmark = pytest.mark.integration

PROGRAM = """
import json, multiprocessing, os, sys, threading
from fulcrum_worker.engine_forks import fork_children
from fulcrum_worker.parent_death import end_with_parent

state = ["imported"]

def began():
    end_with_parent(os.getppid())
    state.append("began")

def tell(writer, stays):
    writer.send({"state": state, "set": os.environ.get("SET"), "unset": os.environ.get("UNSET"), "pid": os.getpid()})
    if stays:
        threading.Event().wait()
    sys.exit(3)

if __name__ == "__main__":
    state.append("main")
    if "threads" in sys.argv:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    fork_children(began)
    state.append("later")
    os.environ["SET"] = "later"
    del os.environ["UNSET"]
    reader, writer = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=tell, args=(writer, "stays" in sys.argv))
    process.start()
    print(json.dumps(reader.recv()), flush=True)
    process.join()
    print(json.dumps(process.exitcode), flush=True)
"""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "UNSET": "first", "SET": "first"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(folder: Path, *arguments: str) -> tuple[list[Any], str]:
    """What a program printed that has ended."""
    out, errors = started(folder, *arguments).communicate(timeout=deadline_seconds(60))
    return [json.loads(line) for line in out.splitlines()], errors


def test_a_child_is_the_process_as_it_was_with_the_environment_as_it_is(tmp_path: Path) -> None:
    (told, code), errors = ended(tmp_path)
    assert told["state"] == ["imported", "main", "began"]
    assert (told["set"], told["unset"]) == ("later", None)
    assert code == 3
    assert not errors


def test_a_process_with_threads_is_not_copied(tmp_path: Path) -> None:
    (told, code), errors = ended(tmp_path, "threads")
    assert told["state"] == ["imported"]
    assert (told["set"], told["unset"]) == ("later", None)
    assert code == 3
    assert "2 threads" in errors


def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    with started(tmp_path, "stays") as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        below = psutil.Process(parent.pid).children(recursive=True)
        assert told["pid"] in [process.pid for process in below]
        parent.send_signal(signal.SIGKILL)
    psutil.wait_procs(below, timeout=deadline_seconds(20))
    assert not alive(below)
