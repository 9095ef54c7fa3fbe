"""API keys of a gateway Pod change with their Secret: a real API server, kubelet and gateway process."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

import pytest
from tests.local.kubelet.conftest import Client
from tests.machine import eventually

pytestmark = pytest.mark.integration
SECRETS = "/api/v1/namespaces/default/secrets"


def secret(**keys: str) -> dict[str, Any]:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}


async def status(host: str, key: str) -> int:
    reader, writer = await asyncio.open_connection(host, 8080)
    try:
        request = f"GET /v1/models HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        line = await reader.readline()
        if not line:
            raise ConnectionResetError
        return int(line.split()[1])
    finally:
        writer.close()


async def until(host: str, answers: dict[str, int]) -> None:
    """Wait until each key is answered with its status."""
    seen: dict[str, int] = {}

    async def as_wanted() -> bool:
        seen.update({key: await status(host, key) for key in answers})
        return seen == answers

    await eventually(as_wanted, what=lambda: str(seen), seconds=120, not_yet=(OSError,))


async def test_keys_rotate_without_a_restart(client: Client) -> None:
    await client.api.create(SECRETS, secret(old="key-of-old", kept="key-of-kept"))
    config = {"cluster": "c", "servedName": "m", "model": "m", "apiKeysDirectory": "/etc/fulcrum/api-keys"}
    pod = await client.make(
        "keyed-gateway",
        {
            "name": "gateway", "image": "x",
            "command": [sys.executable, "-m", "fulcrum.cli.app", "gateway", "--static-worker", "mixed=http://127.0.0.1:1"],
            "env": [
                {"name": "FULCRUM_GATEWAY_CONFIG", "value": json.dumps(config)},
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [{"name": "api-keys", "mountPath": "/etc/fulcrum/api-keys", "readOnly": True}],
        },
        volumes=[{"name": "api-keys", "secret": {"secretName": "keys"}}],
    )  # fmt: skip
    running = await client.until("keyed-gateway", lambda found: found["status"]["podIP"])
    host = running["status"]["podIP"]
    await until(host, {"key-of-old": 200, "key-of-kept": 200, "key-of-new": 401})
    processes = set(client.world.processes(pod["metadata"]["uid"]))

    current = await client.api.get(f"{SECRETS}/keys")
    changed = secret(new="key-of-new", kept="key-of-kept")["data"]
    await client.api.patch(f"{SECRETS}/keys", {"data": {**dict.fromkeys(current["data"]), **changed}})
    await until(host, {"key-of-old": 401, "key-of-kept": 200, "key-of-new": 200})

    await client.api.delete(f"{SECRETS}/keys")
    await client.poll(lambda: "volumes_not_updated" in client.world.log("kubelet"))
    await until(host, {"key-of-old": 401, "key-of-kept": 200, "key-of-new": 200})
    assert set(client.world.processes(pod["metadata"]["uid"])) == processes
    await client.delete("keyed-gateway")
