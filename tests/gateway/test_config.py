"""Settings from environment and options, and the process: start, serve, SIGTERM."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys

import pytest
from tests.gateway.conftest import Client, Engine, eventually
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.gateway.config import ConfigError, read_settings

DOCUMENT = json.dumps({"cluster": "chat", "servedName": "chat", "model": "org/m", "limits": {"maxBodyBytes": 10}})


def test_environment_gives_the_settings_and_options_win() -> None:
    environment = {"FULCRUM_GATEWAY_CONFIG": DOCUMENT, "POD_IP": "127.1.2.3", "POD_NAMESPACE": "ns"}
    settings = read_settings(environment)
    assert (settings.host, settings.port, settings.namespace) == ("127.1.2.3", 8080, "ns")
    assert (settings.config.cluster, settings.config.limits.max_body_bytes) == ("chat", 10)
    settings = read_settings(environment, host="::1", port=0, namespace="other", served_name="x")
    assert (settings.host, settings.port, settings.namespace) == ("::1", 0, "other")
    assert settings.config.served_name == "x"


def test_a_static_worker_may_have_an_agent() -> None:
    settings = read_settings({}, served_name="m", static_workers=("mixed=http://127.0.0.1:1?agent=2",))
    assert [(worker.port, worker.agent_port) for worker in settings.static_workers] == [(1, 2)]


def test_static_workers_need_no_document() -> None:
    settings = read_settings(
        {}, served_name="m", static_workers=("prefill=http://127.0.0.1:1", "mixed=http://[::1]:2/")
    )
    assert [(worker.role, worker.host, worker.port) for worker in settings.static_workers] == [
        (Role.PREFILL, "127.0.0.1", 1),
        (Role.MIXED, "::1", 2),
    ]


@pytest.mark.parametrize(
    ("environment", "static"),
    [
        ({}, ()),
        ({"FULCRUM_GATEWAY_CONFIG": "{"}, ()),
        ({"FULCRUM_GATEWAY_CONFIG": '{"cluster":"c"}'}, ()),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("boss=http://a:1",)),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("prefill=a:1",)),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("prefill=http://a",)),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("prefill=http://a:99999",)),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("prefill=http://a:1?agent=x",)),
        ({"FULCRUM_GATEWAY_CONFIG": DOCUMENT}, ("prefill=http://a:1?agnt=1",)),
    ],
)
def test_what_cannot_be_used_is_refused(environment: dict[str, str], static: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        read_settings(environment, static_workers=static)


@pytest.mark.integration
async def test_the_command_serves_and_ends_with_zero_on_sigterm() -> None:
    prefill, decode = Engine("p", Role.PREFILL), Engine("d", Role.DECODE, tokens=20)
    for engine in (prefill, decode):
        await engine.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1", "--port", "0", "--served-name", "m",
        "--static-worker", f"prefill=http://127.0.0.1:{prefill.port}", "--access-log",
        "--static-worker", f"decode=http://127.0.0.1:{decode.port}", "--lame-duck-seconds", "0.1",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    log = b""
    try:
        async with asyncio.timeout(deadline_seconds(120)):
            while not (started := re.search(rb"gateway_started .*port=(\d+)", log)):
                line = await process.stderr.readline()
                assert line, log
                log += line
            client = Client(*await asyncio.open_connection("127.0.0.1", int(started[1])))
            client.post({"model": "m", "prompt": "secret words", "stream": True})
            answer = await client.answer()
            client.close()
            assert (answer.status, answer.complete) == (200, True)
            # Both orders of the pair are tried before, or alongside.
            await eventually(lambda: any(seen.headers["x-request-id"].startswith("prewarm-") for seen in prefill.seen))
            process.send_signal(signal.SIGTERM)
            log += await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        for engine in (prefill, decode):
            await engine.stop()
    assert b"gateway_stopped" in log
    assert b"request id=" in log
    assert b"secret" not in log


@pytest.mark.parametrize(
    ("pod_ip", "host"),
    [("10.1.2.3", "0.0.0.0"), ("fd00::7", "::"), ("127.0.0.9", "127.0.0.9"), ("::1", "::1"), ("", "127.0.0.1")],
)
def test_all_addresses_of_a_pod_are_listened_on(pod_ip: str, host: str) -> None:
    """`kubectl port-forward` comes by the Pod's loopback; Pods of a process kubelet share theirs with the machine."""
    document = {"cluster": "c", "servedName": "m", "model": "m"}
    environment = {"FULCRUM_GATEWAY_CONFIG": json.dumps(document), "POD_IP": pod_ip}
    assert read_settings(environment).host == host
    assert read_settings(environment, host="127.0.0.3").host == "127.0.0.3"
