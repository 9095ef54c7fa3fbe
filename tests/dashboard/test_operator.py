"""The dashboard of an operator that waits for its Lease, of one without rights or flag, and the command's errors."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator

import aiohttp
import pytest
from _loopback.launch import free_ports
from tests.controller.cluster import BIN, ApiServer, Operator, eventually, running_api_server
from tests.machine import deadline_seconds

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_api_server(tmp_path_factory.mktemp("api")) as started:
        started.install()
        yield started


async def test_the_operator_that_leads_has_the_figures(server: ApiServer) -> None:
    lease = ("--lease-duration", "15s", "--lease", "fulcrum-system/fulcrum-operator")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/dashboard/events"
    async with aiohttp.ClientSession() as http:

        async def status() -> tuple[int, str]:
            try:
                async with http.get(url) as answer:
                    return answer.status, (await answer.json())["why"] if answer.status == 503 else ""
            except aiohttp.ClientConnectionError:
                return 0, ""

        with Operator(server, *lease, pod="first") as first:

            async def leads() -> bool:
                return "fulcrum_operator_leader 1.0" in first.metrics()

            await eventually(leads)
            with Operator(
                server, *lease, "--dashboard", "--health-address", f"127.0.0.1:{port}", pod="second"
            ) as other:

                async def waits() -> bool:
                    return "waits for its Lease" in (await status())[1]

                await eventually(waits)
                assert first.stop() == 0

                async def shows() -> bool:
                    return (await status())[0] == 200

                await eventually(shows)
                # These rights are those without `dashboard.enabled`: the page goes without Events, and says so once.
                async with http.get(url) as answer, asyncio.timeout(deadline_seconds(30)):
                    while not (await answer.content.readline()).startswith(b"event: fleet"):
                        pass

                async def said_once() -> bool:
                    return other.log.read_text().count("resource_missing resource=events") == 1

                await eventually(said_once)


async def test_without_the_flag_there_is_no_dashboard(server: ApiServer) -> None:
    (port,) = free_ports(1)
    with Operator(server, "--health-address", f"127.0.0.1:{port}"):
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                try:
                    async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(answers)
            for path in ("/dashboard", "/dashboard/events"):
                async with http.get(f"http://127.0.0.1:{port}{path}") as answer:
                    assert answer.status == 404


def run_dashboard(server: ApiServer, *arguments: str) -> tuple[int, str]:
    command = [str(BIN / "fulcrum"), "dashboard", "--kubeconfig", str(server.kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_seconds(60), check=False)
    return done.returncode, done.stderr


def test_the_command_says_what_is_wrong_with_an_address(server: ApiServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = run_dashboard(server, "--listen", address)
        assert code == 1
        assert said.startswith(f"Error: cannot listen on {address}: ")
    code, said = run_dashboard(server, "--listen", "8090")
    assert code == 2
    assert "8090 is not HOST:PORT" in said
