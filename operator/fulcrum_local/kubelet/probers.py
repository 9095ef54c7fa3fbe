"""Carrying out one probe: HTTP, TCP or a command."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from fulcrum_local.kubelet.processes import Identity, own_children, wait_gone

Json = dict[str, Any]
_ANSWER_BYTES = 10 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where probes and hooks of a container go."""

    host: str
    ports: dict[str, int]
    env: dict[str, str]
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a probe; `message` says why it failed."""

    ok: bool
    message: str = ""


async def carry_out(handler: Json, target: Target, *, timeout_seconds: float) -> Outcome:
    """Run a probe or hook once; whatever goes wrong on the way is a failure, never an error here."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if "httpGet" in handler:
                return await _http(handler["httpGet"], target)
            if "tcpSocket" in handler:
                return await _tcp(handler["tcpSocket"], target)
            if "exec" in handler:
                return await _command(handler["exec"].get("command") or [], target)
    except TimeoutError:
        return Outcome(ok=False, message=f"no answer within {timeout_seconds:g}s")
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return Outcome(ok=False, message=str(error) or type(error).__name__)
    return Outcome(ok=False, message=f"{next(iter(handler), 'an empty handler')} is not supported in process mode")


def _port(port: int | str, target: Target) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    if port not in target.ports:
        raise ValueError(f"the container has no port named {port}")
    return target.ports[port]


async def _http(action: Json, target: Target) -> Outcome:
    host = action.get("host") or target.host
    port = _port(action["port"], target)
    context = None
    if str(action.get("scheme", "HTTP")).upper() == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # as the kubelet does: a probe checks life, not identity
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/fulcrum", "Accept": "*/*", "Connection": "close"}
        headers.update({item["name"]: item["value"] for item in action.get("httpHeaders") or []})
        lines = [f"GET {action.get('path') or '/'} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        status = (await reader.readline()).split(b" ", 2)
        if len(status) < 2 or not status[1].isdigit():
            return Outcome(ok=False, message="no HTTP answer")
        code = int(status[1])
        if 200 <= code < 400:
            return Outcome(ok=True)
        head_and_body = await reader.read(_ANSWER_BYTES)
        body = head_and_body.partition(b"\r\n\r\n")[2][:200].decode(errors="replace")
        return Outcome(ok=False, message=f"HTTP probe failed with statuscode: {code} {body}".strip())
    finally:
        writer.close()


async def _tcp(action: Json, target: Target) -> Outcome:
    _, writer = await asyncio.open_connection(action.get("host") or target.host, _port(action["port"], target))
    writer.close()
    return Outcome(ok=True)


async def _command(argv: list[str], target: Target) -> Outcome:
    """Not through asyncio's child watcher: the kubelet reaps by pid itself (see `processes`)."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(  # noqa: ASYNC220 - a fork, milliseconds
            argv, env=target.env, cwd=target.cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        own_children.add(child.pid)
        identity = Identity.of(child.pid)
        try:
            if identity is not None:
                await wait_gone(identity)
        finally:
            if identity is not None and identity.alive:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            own_children.discard(child.pid)
        output.seek(0)
        text = output.read(_ANSWER_BYTES).decode(errors="replace").strip()
    return Outcome(ok=child.returncode == 0, message=text or f"exit code {child.returncode}")
