"""What a kubelet leaves behind, and what its successor makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fulcrum_local.kubelet.processes import read_json

if TYPE_CHECKING:
    from tests.local.kubelet.conftest import Client, World

Json = dict[str, Any]
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def kubelet_again(world: World) -> Iterator[None]:
    """The next test has a kubelet, whatever this one did to it."""
    yield
    if world.kubelet is None:
        world.start_kubelet("--no-taint")


def sleeper(**more: Any) -> Json:
    return {"name": "main", "image": "none", "command": ["sh", "-c", "echo up; sleep 10000; exit 4"], **more}


def restarts(pod: Json) -> int:
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count


def is_ready(pod: Json) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"])


@contextlib.asynccontextmanager
async def pod_without_kubelet(client: Client, name: str, number: signal.Signals) -> AsyncIterator[Json]:
    """A Pod that runs while no kubelet does; in the end there is one again."""
    await client.make(name, sleeper())
    pod = await client.until(name, is_ready)
    await client.process(pod["metadata"]["uid"], "sleep")
    await client.printed(name, "up\n")
    before: Json = {}
    while pod != before:  # until all is written
        before = pod
        await asyncio.sleep(0.5)
        pod = await client.get(name)
    client.world.stop_kubelet(number)
    yield pod
    client.world.start_kubelet("--no-taint")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_running_pods_are_taken_over_not_restarted(client: Client, number: signal.Signals) -> None:
    name = f"adopted-{number.name.lower()}"
    async with pod_without_kubelet(client, name, number) as before:
        uid = before["metadata"]["uid"]
        pids = client.world.processes(uid)
        assert pids
    await client.make(f"{name}-next", sleeper())
    await client.until(f"{name}-next", is_ready)
    after = await client.get(name)
    assert client.world.processes(uid) == pids
    # Nothing has changed, so nothing was written; and the address is not given to another Pod.
    assert after["status"] == before["status"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert (await client.get(f"{name}-next"))["status"]["podIP"] != after["status"]["podIP"]
    assert await client.logs(name) == "up\n"
    # It is still watched and can be ended.
    os.kill(await client.process(uid, "sh"), signal.SIGKILL)
    await client.until(name, lambda pod: restarts(pod) == 1 and is_ready(pod))
    await asyncio.gather(client.delete(name), client.delete(f"{name}-next"))
    assert client.world.processes(uid) == []


async def test_what_ended_meanwhile_is_known_with_its_exit_code(client: Client) -> None:
    async with pod_without_kubelet(client, "ended", signal.SIGKILL) as before:
        os.kill(await client.process(before["metadata"]["uid"], "sleep"), signal.SIGKILL)
        await client.poll(lambda: not client.world.processes(before["metadata"]["uid"]))
    pod = await client.until("ended", lambda pod: restarts(pod) == 1 and is_ready(pod))
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 4
    await client.delete("ended")


async def test_a_pod_deleted_meanwhile_is_ended(client: Client) -> None:
    async with pod_without_kubelet(client, "orphan", signal.SIGKILL) as pod:
        await client.api.delete("/api/v1/namespaces/default/pods/orphan", grace_seconds=0)
        await client.gone("orphan")
        uid = pod["metadata"]["uid"]
        assert client.world.processes(uid)
    await client.poll(lambda: not client.world.processes(uid) and not (client.world.state / "pods" / uid).exists())


async def test_a_killed_shim_takes_everything_with_it(client: Client) -> None:
    await client.make("shim", sleeper(command=["sh", "-c", "setsid sleep 10001 & sleep 10000"]))
    pod = await client.until("shim", is_ready)
    uid = pod["metadata"]["uid"]
    await client.process(uid, "sleep")
    before = client.world.processes(uid)
    record = read_json(client.world.state / "pods" / uid / "containers" / "main" / "0" / "shim.json")
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    pod = await client.until("shim", lambda pod: restarts(pod) == 1 and is_ready(pod))
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    assert not set(before) & set(client.world.processes(uid))
    await client.delete("shim")


async def test_a_second_kubelet_on_the_same_state_is_refused(client: Client) -> None:
    first = client.world.kubelet
    assert first is not None
    client.world.start_kubelet("--no-taint")
    second, client.world.kubelet = client.world.kubelet, first
    assert second is not None
    assert await asyncio.to_thread(second.wait, 60) == 1
    assert "another kubelet uses" in client.world.log("kubelet")


async def test_a_successor_of_the_same_name_is_left_alone(client: Client) -> None:
    await client.make("again", sleeper(command=["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]))
    first = await client.until("again", is_ready)
    # By force: the object goes at once, its processes are still being ended when the next one begins.
    await client.api.delete("/api/v1/namespaces/default/pods/again", grace_seconds=0)
    await client.make("again", sleeper())
    second = await client.until("again", is_ready)
    await client.poll(lambda: not client.world.processes(first["metadata"]["uid"]))
    assert (await client.get("again"))["metadata"]["uid"] == second["metadata"]["uid"]
    assert second["status"]["podIP"] != first["status"]["podIP"]
    await client.delete("again")
