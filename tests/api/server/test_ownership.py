"""Garbage collection as clients see it; on the embedded server with the controllers of local mode beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.api.server.cluster import Http, Json, config_map, deployment, wait_for

_CONTROLLERS = """
import asyncio, signal, sys
from fulcrum_local.controllers.runner import run_controllers
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_controllers(sys.argv[1], stop)
asyncio.run(main())
"""


@pytest.fixture(scope="module", autouse=True)
def controllers(kubeconfig: Path, external_kubeconfig: Path | None) -> Iterator[None]:
    """The controllers, unless the cluster has its own."""
    if external_kubeconfig is not None:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _CONTROLLERS, str(kubeconfig)]) as process:
        yield
        process.terminate()


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _ok(response: requests.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    obj: Json = response.json()
    return obj


def _owned(api: Http, path: str, name: str, owner: Json) -> Json:
    body = config_map(name)
    reference = {"apiVersion": "v1", "kind": "ConfigMap"}
    reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    body["metadata"]["ownerReferences"] = [reference]
    return _ok(api.post(path, json=body), 201)


def _is_gone(api: Http, path: str) -> bool:
    return api.get(path).status_code == 404


def test_what_is_owned_goes_with_its_owner(api: Http, path: str) -> None:
    owner = _ok(api.post(path, json=config_map("owner")), 201)
    child = _owned(api, path, "child", owner)
    _owned(api, path, "grandchild", child)
    _ok(api.delete(f"{path}/owner"))
    for name in ("child", "grandchild"):
        wait_for(lambda name=name: _is_gone(api, f"{path}/{name}"), f"{name} collected")  # type: ignore[misc]


def test_what_is_created_for_an_owner_that_is_gone_goes(api: Http, path: str) -> None:
    owner = _ok(api.post(path, json=config_map("owner")), 201)
    _ok(api.delete(f"{path}/owner"))
    _owned(api, path, "late", owner)
    wait_for(lambda: _is_gone(api, f"{path}/late"), "collected")


def test_foreground_deletion_waits_for_the_owned(api: Http, path: str) -> None:
    owner = _ok(api.post(path, json=config_map("owner")), 201)
    child = config_map("child")
    child["metadata"]["finalizers"] = ["example.com/wait"]
    child["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
    ]  # fmt: skip
    _ok(api.post(path, json=child), 201)
    _ok(api.delete(f"{path}/owner", params={"propagationPolicy": "Foreground"}))
    wait_for(lambda: "deletionTimestamp" in _ok(api.get(f"{path}/child"))["metadata"], "child marked")
    assert _ok(api.get(f"{path}/owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    headers = {"Content-Type": "application/merge-patch+json"}
    _ok(api.patch(f"{path}/child", json={"metadata": {"finalizers": None}}, headers=headers))
    wait_for(lambda: _is_gone(api, f"{path}/owner"), "owner gone")


def test_orphans_stay_and_forget_their_owner(api: Http, path: str) -> None:
    owner = _ok(api.post(path, json=config_map("owner")), 201)
    _owned(api, path, "child", owner)
    _ok(api.delete(f"{path}/owner", params={"propagationPolicy": "Orphan"}))
    wait_for(lambda: _is_gone(api, f"{path}/owner"), "owner gone")
    assert "ownerReferences" not in _ok(api.get(f"{path}/child"))["metadata"]


def test_a_deployment_takes_everything_along(api: Http, namespace: str) -> None:
    root = f"/apis/apps/v1/namespaces/{namespace}"
    body = deployment("one", replicas=1)
    body["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/none": "none"}
    _ok(api.post(f"{root}/deployments", json=body), 201)

    def pods() -> list[Json]:
        items: list[Json] = _ok(api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return items

    wait_for(lambda: len(pods()) == 1, "a Pod")
    _ok(api.delete(f"{root}/deployments/one"))
    wait_for(lambda: not pods() and not _ok(api.get(f"{root}/replicasets"))["items"], "everything gone")
