"""What a benchmark has started is stopped with it, also when it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from _loopback import launch
from tests.machine import deadline_seconds, wait_until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAUNCHED = """
import sys, time
from _loopback.launch import started
with started([sys.executable, "-c", "import time; time.sleep(3600)"], silent=True) as process:
    print(process.pid, flush=True)
    time.sleep(3600)
"""
FLEET = """
import subprocess, sys, time
from _loopback.fleet_processes import ended
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
with ended(process):
    print(process.pid, flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("script", [LAUNCHED, FLEET], ids=["launched", "fleet"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_told_to_end_stops_what_it_started(script: str, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as benchmark:
        assert benchmark.stdout is not None
        child = psutil.Process(int(benchmark.stdout.readline()))
        benchmark.send_signal(number)
        assert benchmark.wait(deadline_seconds(60)) != 0
        wait_until(lambda: not child.is_running(), what="the child has ended")


PORTS_OF_ANOTHER = """
import sys
from _loopback.launch import free_ports
print(*free_ports(20), flush=True)
sys.stdin.read()
"""


def test_a_port_is_given_once_before_anything_listens_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by another process, nor by the kernel to whoever asks it for any."""
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    command = [sys.executable, "-c", PORTS_OF_ANOTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as other:
        assert other.stdout is not None
        theirs = [int(each) for each in other.stdout.readline().split()]
        assert len(set(theirs)) == 20
        assert max(theirs) < 32_768, "from there on Linux chooses itself, if nobody has set another range"
        monkeypatch.setattr(launch, "_PORTS", theirs)
        with pytest.raises(OSError, match=r"1 free ports .* there are 0"):
            launch.free_ports(1)
        other.communicate("")
    assert launch.free_ports(1)[0] in theirs
