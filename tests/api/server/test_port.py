"""The port of the last run: kubeconfigs name it."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.machine import deadline_seconds

from fulcrum_local.apiserver.run import Options, serving
from fulcrum_local.home import EXIT_PORT_TAKEN


async def port_of_a_run(state_dir: Path) -> int:
    async with serving(Options(state_dir=state_dir)) as url:
        port = urlsplit(url).port
        assert port is not None
        return port


def somebody_on(port: int) -> socket.socket:
    other = socket.socket()
    other.bind(("127.0.0.1", port))
    return other


async def test_it_is_waited_for(tmp_path: Path) -> None:
    port = await port_of_a_run(tmp_path)
    other = somebody_on(port)
    threading.Timer(0.3, other.close).start()
    assert await port_of_a_run(tmp_path) == port


@pytest.mark.integration
async def test_a_port_that_stays_taken_ends_the_process_with_what_to_do(tmp_path: Path) -> None:
    port = await port_of_a_run(tmp_path)
    with closing(somebody_on(port)):
        for arguments, parts in (
            ((), (f"127.0.0.1:{port}", "in use", f"remove {tmp_path / 'port'}")),
            (("--port", str(port)), (f"127.0.0.1:{port}", "in use", "choose another --port")),
        ):
            server = [sys.executable, "-m", "fulcrum.cli.app", "apiserver", "--state-dir", str(tmp_path), *arguments]
            process = await asyncio.create_subprocess_exec(*server, stderr=asyncio.subprocess.PIPE)
            _, output = await asyncio.wait_for(process.communicate(), deadline_seconds(120))
            said = output.decode()
            assert (process.returncode, said.count("\n")) == (EXIT_PORT_TAKEN, 1), said
            for part in parts:
                assert part in said
        (tmp_path / "port").unlink()
        assert await port_of_a_run(tmp_path) != port
