"""Calls: absence is None, deletions carry the uid, refusals are typed, credentials are read again, all in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web
from tests.kube.conftest import Server, page, pod, status
from tests.machine import deadline_seconds

from fulcrum.kube import Api, ApiError, ConfigError, Kube, Resource, Unreachable

PODS = Resource(api_version="v1", kind="Pod", plural="pods")
NODES = Resource(api_version="v1", kind="Node", plural="nodes", namespaced=False)
SCALES = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")


@pytest.fixture
def kube(api: Api) -> Kube:
    return Kube(api, field_manager="tester")


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.collection("n") == "/api/v1/namespaces/n/pods"
    assert PODS.collection(None) == "/api/v1/pods"
    assert SCALES.path(("n", "a"), "status") == "/apis/apps/v1/namespaces/n/deployments/a/status"
    assert NODES.path(("", "a")) == "/api/v1/nodes/a"


async def test_what_is_absent_is_none_and_no_error(kube: Kube) -> None:
    assert await kube.get(PODS, "n", "a") is None
    assert await kube.merge(PODS, "n", "a", {}) is None
    assert await kube.replace(PODS, pod("a", 1)) is None
    assert await kube.apply_status(PODS, "n", "a", {}) is None
    await kube.delete(PODS, "n", "a", uid="u")
    with pytest.raises(ApiError) as caught:
        await kube.apply(PODS, "n", "a", {})
    assert (caught.value.code, caught.value.reason, str(caught.value)) == (404, "NotFound", "not found")


async def test_a_deletion_says_which_object_it_means(server: Server, kube: Kube) -> None:
    async def taken(_: web.Request) -> web.StreamResponse:
        return status(409, "Conflict", "the UID in the precondition does not match")

    server.handler = taken
    await kube.delete(PODS, "n", "a", uid="u-1", grace_seconds=3)
    method, path, _, body = server.requests[-1]
    assert (method, path) == ("DELETE", "/api/v1/namespaces/n/pods/a")
    assert body["preconditions"] == {"uid": "u-1"}
    assert body["gracePeriodSeconds"] == 3
    # Without a uid a conflict is not "somebody else's object".
    with pytest.raises(ApiError):
        await kube.delete(PODS, "n", "a", uid=None)


async def test_writes_name_their_field_manager(server: Server, kube: Kube) -> None:
    async def made(_: web.Request) -> web.StreamResponse:
        return web.json_response(pod("a", 7), status=201)

    server.handler = made
    created = await kube.create(PODS, pod("a", 0))
    assert created is not None
    assert created["metadata"]["resourceVersion"] == "7"
    await kube.merge(PODS, "n", "a", {})
    await kube.replace(PODS, pod("a", 7))
    await kube.apply(PODS, "n", "a", {})
    await kube.apply_status(PODS, "n", "a", {"phase": "x"})
    assert [query.get("fieldManager") for _, _, query, _ in server.requests] == ["tester"] * 5
    assert [query.get("force") for _, _, query, _ in server.requests][3:] == ["true"] * 2
    assert server.requests[-1][1].endswith("/pods/a/status")
    assert server.requests[-1][3]["status"] == {"phase": "x"}


async def test_a_list_is_read_page_by_page_and_again_when_its_pages_are_too_old(server: Server, kube: Kube) -> None:
    expired = False

    async def pages(request: web.Request) -> web.StreamResponse:
        if "limit" not in request.query:
            return page(9, pod("a", 1), pod("b", 2), pod("c", 3))
        match request.query.get("continue"):
            case None:
                return page(5, pod("a", 1), continue_="two")
            case "two":
                return page(5, pod("b", 2), continue_="three")
            case _:
                return status(410, "Expired", "the continue token is too old") if expired else page(5, pod("c", 3))

    server.handler = pages
    for too_old in (False, True):
        expired = too_old
        found = await kube.list(PODS, "n", {"app": "x", "own": ""})
        assert [each["metadata"]["name"] for each in found] == ["a", "b", "c"]
    assert {query["labelSelector"] for _, _, query, _ in server.requests} == {"app=x,own"}


async def test_a_server_that_is_silent_or_breaks_off_is_unreachable_in_time(server: Server, tmp_path: Path) -> None:
    api = Api(server.kubeconfig, timeout_seconds=0.3)

    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(deadline_seconds(30))
        raise AssertionError

    async def breaks_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    async def no_json(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    for handler in (silent, breaks_off, no_json):
        server.handler = handler
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await api.get("/api/v1/pods")
        assert time.monotonic() - began < deadline_seconds(5)
    await api.close()
    closed = Api(_kubeconfig_of_nobody(server, tmp_path / "other"))
    with pytest.raises(Unreachable):
        await closed.get("/api/v1/pods")
    await closed.close()


def _kubeconfig_of_nobody(server: Server, folder: Path) -> Path:
    folder.mkdir()
    other = Server(folder)
    other.write_kubeconfig(1, "t")
    return other.kubeconfig


async def test_a_refused_token_is_read_again_from_its_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.kube.connection._REFRESH_SECONDS", 0.0)
    api = Api(server.kubeconfig)

    async def answer(request: web.Request) -> web.StreamResponse:
        allowed = request.headers["Authorization"] == "Bearer second"
        return page(1) if allowed else status(401, "Unauthorized", "Unauthorized")

    server.handler = answer
    with pytest.raises(ApiError) as caught:
        await api.get("/api/v1/pods")
    assert caught.value.code == 401
    assert server.tokens == ["Bearer first"] * 2  # once more with what the file says, and no loop
    text = server.kubeconfig.read_text()
    server.kubeconfig.write_text(text.replace("first", "second"))
    await api.get("/api/v1/pods")
    assert server.tokens[-1] == "Bearer second"
    await api.close()


async def test_a_server_that_moved_is_found_where_the_kubeconfig_says(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.kube.connection._REFRESH_SECONDS", 0.0)
    text = server.kubeconfig.read_text()
    server.write_kubeconfig(1, "first")
    api = Api(server.kubeconfig)
    with pytest.raises(Unreachable):
        await api.get("/api/v1/pods")
    server.kubeconfig.write_text(text)
    with pytest.raises(Unreachable):
        await api.get("/api/v1/pods")
    with pytest.raises(ApiError):  # it answers: 404
        await api.get("/api/v1/pods")
    await api.close()


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "clusters: 3", "apiVersion: v1\ncurrent-context: x"])
async def test_a_kubeconfig_that_cannot_be_used_is_said_so(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=str(file)):
        await Api(file).connect()


def test_the_kubernetes_package_is_loaded_by_the_first_call_only() -> None:
    code = "import sys, fulcrum.kube, fulcrum.cli.app; sys.exit(bool({'kubernetes', 'aiohttp'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=deadline_seconds(120)).returncode == 0
