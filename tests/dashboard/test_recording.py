"""`fulcrum dashboard --demo`: a simulated run is replayed, with its moments moved to today, on loopback alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.machine import deadline_seconds

from fulcrum.cli.app import main
from fulcrum.cli.dashboard.demo import recorded
from fulcrum.cli.dashboard.recording import ORIGIN, Recording, Replayed
from fulcrum.dashboard.view import detail, row, status_of, workers

NOW = 1_800_000_000.0
"""Unix time at which the replay begins."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded()


async def test_the_state_changes_over_time_and_begins_again(recording: Recording) -> None:
    now = NOW
    source = Replayed(recording, now=lambda: now)
    seen = []
    for step in range(80):
        now = NOW + 1 + recording.seconds * step / 40
        (facts,) = (await source.read(frozenset())).clusters
        status = status_of(facts.document)
        shown = row(facts, status)
        seen.append((shown.ratio, shown.rate, shown.running))
        full = detail(facts, status, shown)
        assert [each.ready for each in workers(facts)] == [True, True, True]
        for decision in full.decisions:
            assert now - 2 * recording.seconds < datetime.fromisoformat(decision.time).timestamp() <= now + 1
    assert seen[:40] == seen[40:], "the run is replayed in a loop"
    assert len({ratio for ratio, _, _ in seen}) >= 2, "workers are flipped"
    assert len({rate for _, rate, _ in seen}) > 10


def test_a_recording_needs_no_cluster_and_takes_none() -> None:
    result = CliRunner().invoke(main, ["dashboard", "--demo", "--namespace", "serving"])
    assert result.exit_code == 2
    assert "--demo needs no cluster" in result.output


@pytest.mark.integration
def test_the_page_answers_says_what_it_is_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    # Names of other hosts and addresses beyond loopback are refused to the process.
    program = (
        "import socket\n"
        "real = socket.socket.connect\n"
        "def connect(self, address):\n"
        "    assert self.family == socket.AF_UNIX or address[0] in ('127.0.0.1', '::1'), address\n"
        "    return real(self, address)\n"
        "socket.socket.connect = connect\n"
        "from fulcrum.cli.app import main; main()"
    )
    arguments = ["dashboard", "--demo", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        try:
            url = next(line.split()[-1] for line in process.stdout if line.startswith("Dashboard"))
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as page:
                assert b"<html" in page.read()
            with urllib.request.urlopen(f"{url}/events?cluster=demo/chat", timeout=deadline_seconds(30)) as stream:
                text = "".join(stream.readline().decode() for _ in range(9))
            assert ORIGIN in text
            assert '"total":1' in text
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=deadline_seconds(60)) == 0
