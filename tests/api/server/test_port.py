"""The port of the last run: kubeconfigs name it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fulcrum.local.apiserver import run
from fulcrum.local.apiserver.run import Options, serving


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


async def test_a_port_that_stays_taken_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_TAKEN_SECONDS", 0.2)
    port = await port_of_a_run(tmp_path)
    with closing(somebody_on(port)):
        second = await port_of_a_run(tmp_path)
    assert second != port
    assert await port_of_a_run(tmp_path) == second
