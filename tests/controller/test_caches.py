"""Caches: own writes are seen at once, lists prune, and what is out of date is not acted on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.kube.conftest import Server, event, events, page, server, status
from tests.machine import deadline_seconds

from fulcrum.controller.caches import Caches
from fulcrum.controller.kube import DEPLOYMENT, INFERENCE_CLUSTER, POD, Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observe import observe
from fulcrum.kube import Api, Json, Key, Unreachable

KEY = ("n", "c")
__all__ = ["server"]  # a fixture


def made(name: str, version: int, *, cluster: str = "c", **fields: Any) -> Json:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": f"u-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"fulcrum.dev/cluster": cluster, "app.kubernetes.io/component": "worker"},
        "managedFields": [{"manager": "m"}],
    }
    container = {"name": "worker", "image": "i", "env": [{"name": "LONG", "value": "x" * 1000}]}
    return {"metadata": metadata, "spec": {"containers": [container], "volumes": [{"name": "v"}]}, **fields}


class Script:
    """What the API server has, and the watch of Pods, which a test feeds."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pods: tuple[int, list[Json]] = (5, [made("a", 3), made("b", 4)])
        self.feed = asyncio.Queue[bytes | None]()
        self.up = True
        server.handler = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method in ("POST", "DELETE"):
            return web.json_response(made("own", 7))
        if not self.up:
            return status(503, "ServiceUnavailable", "down")
        if not request.path.endswith("/pods"):
            if "watch" in request.query:
                return await events(request, hold=asyncio.Event())
            return page(5, *([made("c", 2)] if request.path.endswith("/inferenceclusters") else []))
        if "watch" not in request.query:
            return page(self.pods[0], *self.pods[1])
        response = web.StreamResponse()
        await response.prepare(request)
        while (part := await self.feed.get()) is not None:
            await response.write(part)
        return response


@contextlib.asynccontextmanager
async def caching(server: Server, *namespaces: str) -> AsyncIterator[tuple[Caches, Kube, list[Key]]]:
    changed: list[Key] = []
    kube = Kube(Api(server.kubeconfig), Metrics())
    caches = Caches(kube.api, namespaces, changed=changed.append)
    kube.note, kube.note_deletion = caches.record, caches.record_deletion
    task = asyncio.create_task(caches.run())
    async with asyncio.timeout(deadline_seconds(60)):
        await caches.synced()
    try:
        yield caches, kube, changed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kube.api.close()


def names(caches: Caches, key: Key = KEY) -> set[str]:
    return {pod["metadata"]["name"] for pod in caches.pods(key)}


async def until(condition: Any) -> None:
    async with asyncio.timeout(deadline_seconds(60)):
        while not condition():  # noqa: ASYNC110 - polls what has no event
            await asyncio.sleep(0.01)


@pytest.fixture
def script(server: Server) -> Script:
    return Script(server)


async def test_own_writes_are_seen_before_the_watch_tells_of_them(script: Script) -> None:
    async with caching(script.server) as (caches, kube, changed):
        assert names(caches) == {"a", "b"}
        changed.clear()
        await kube.create(POD, made("own", 0))
        assert names(caches) == {"a", "b", "own"}
        await kube.delete(POD, "n", "a", uid="u-a")
        leaving = caches.get(POD, "n", "a")
        assert leaving is not None
        assert "deletionTimestamp" in leaving["metadata"]
        assert changed == [KEY, KEY]
        # The watch tells the same, late, and nothing is brought back or told twice.
        script.feed.put_nowait(event("ADDED", made("own", 7)) + event("DELETED", made("a", 8)))
        await until(lambda: names(caches) == {"b", "own"})
        assert changed == [KEY, KEY, KEY]


async def test_new_measurements_in_a_status_are_known_and_make_nothing_due(script: Script) -> None:
    async with caching(script.server) as (caches, _, changed):
        changed.clear()
        caches.record(INFERENCE_CLUSTER, made("c", 6, status={"observedGeneration": 1, "ttft": {"p50": "1s"}}))
        assert changed == [KEY]
        caches.record(INFERENCE_CLUSTER, made("c", 7, status={"observedGeneration": 1, "ttft": {"p50": "2s"}}))
        assert changed == [KEY]
        known = caches.get(INFERENCE_CLUSTER, *KEY)
        assert known is not None
        assert known["status"]["ttft"] == {"p50": "2s"}
        caches.record(INFERENCE_CLUSTER, made("c", 8, status={"observedGeneration": 2, "ttft": {"p50": "2s"}}))
        assert changed == [KEY, KEY]


async def test_a_deletion_of_another_object_of_that_name_marks_nothing(script: Script) -> None:
    async with caching(script.server) as (caches, kube, _):
        await kube.delete(POD, "n", "a", uid="u-of-another")
        standing = caches.get(POD, "n", "a")
        assert standing is not None
        assert "deletionTimestamp" not in standing["metadata"]


async def test_a_pod_that_changes_its_cluster_is_news_for_both(script: Script) -> None:
    async with caching(script.server) as (caches, _, changed):
        changed.clear()
        script.feed.put_nowait(event("MODIFIED", made("a", 9, cluster="d")))
        await until(lambda: names(caches, ("n", "d")) == {"a"})
        assert names(caches) == {"b"}
        assert set(changed) == {KEY, ("n", "d")}


async def test_a_list_prunes_what_the_watch_has_missed(script: Script) -> None:
    async with caching(script.server) as (caches, kube, _):
        await kube.create(POD, made("own", 0))
        script.pods = (9, [made("b", 4)])
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        script.feed.put_nowait(event("ERROR", gone))
        await until(lambda: names(caches) == {"b"})


async def test_nothing_is_decided_on_what_is_too_old(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.controller.caches.BEHIND_SECONDS", 0.2)
    async with caching(script.server) as (caches, _, _changed):
        found = observe(caches, *KEY)
        assert found is not None
        assert len(found.pods) == 2
        script.up = False
        script.feed.put_nowait(None)

        def refused() -> bool:
            try:
                observe(caches, *KEY)
            except Unreachable as error:
                return "have not been watched" in str(error)
            return False

        await until(refused)
        script.up = True
        await until(lambda: not refused())
        assert observe(caches, "n", "other") is None


async def test_bulk_is_not_kept(script: Script) -> None:
    async with caching(script.server) as (caches, _, _changed):
        kept = caches.get(POD, "n", "a")
        assert kept is not None
        assert "managedFields" not in kept["metadata"]
        assert kept["spec"] == {"containers": [{"name": "worker", "image": "i"}]}
        cluster = caches.get(INFERENCE_CLUSTER, "n", "c")
        assert cluster is not None
        assert (cluster["kind"], cluster["apiVersion"]) == ("InferenceCluster", "fulcrum.dev/v1alpha1")


async def test_a_thousand_pods_fit_into_8_mb_while_they_are_listed_and_after(script: Script) -> None:
    """A fleet of 1,000 clusters has 10,000, and 1 GiB: as whole dictionaries they would take half of it."""
    env = [{"name": f"SETTING_{number}", "value": "x" * 50} for number in range(60)]
    container = {"name": "worker", "image": "i", "env": env}
    pods = [{**made(f"p{n}", n + 1), "spec": {"containers": [container]}} for n in range(1000)]
    script.pods = (2000, pods)
    async with caching(script.server) as (caches, _, _changed):
        script.pods = (3000, [{**pod, "metadata": {**pod["metadata"], "resourceVersion": "2500"}} for pod in pods])
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        gc.collect()
        tracemalloc.start()
        try:
            script.feed.put_nowait(event("ERROR", gone))
            await until(lambda: all(pod["metadata"]["resourceVersion"] == "2500" for pod in caches.pods(KEY)))
            kept = [
                trace
                for trace in tracemalloc.take_snapshot().traces
                if any(part in trace.traceback[0].filename for part in ("fulcrum/kube", "fulcrum/controller"))
            ]
        finally:
            tracemalloc.stop()
        assert 1e5 < sum(trace.size for trace in kept) < 8e6


async def test_a_namespaced_operator_asks_for_its_namespaces_only(script: Script, tmp_path: Path) -> None:
    async with caching(script.server, "n") as (caches, _, _changed):
        assert names(caches) == {"a", "b"}
        assert caches.get(DEPLOYMENT, "n", "c-gateway") is None
    paths = {path for _, path, _, _ in script.server.requests}
    assert all("/namespaces/n/" in path for path in paths), paths
    assert {query.get("labelSelector") for _, path, query, _ in script.server.requests if path.endswith("/pods")} == {
        "fulcrum.dev/cluster"
    }


async def test_a_namespace_that_may_not_be_read_stops_no_other(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.controller.caches.BEHIND_SECONDS", 0.05)
    refused = {"/n2/"}

    async def answer(request: web.Request) -> web.StreamResponse:
        if any(part in request.path for part in refused):
            return status(403, "Forbidden", "there is no RoleBinding")
        if "watch" in request.query:
            while not any(part in request.path for part in refused):  # noqa: ASYNC110 - polls what has no event
                await asyncio.sleep(0.01)
        return await script.answer(request)

    kube = Kube(Api(script.server.kubeconfig), Metrics())
    caches = Caches(kube.api, ("n", "n2"), changed=lambda _: None)
    task = asyncio.create_task(caches.run())
    script.server.handler = answer
    async with asyncio.timeout(deadline_seconds(10)):
        await caches.synced("n")
        await caches.any_synced()
    assert observe(caches, *KEY) is not None
    assert caches.complete("n")
    assert not caches.complete("n2")
    refused.clear()
    async with asyncio.timeout(deadline_seconds(10)):
        await caches.synced("n2")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await kube.api.close()


async def test_an_outage_of_one_namespace_is_told_of_that_one_alone(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.controller.caches.BEHIND_SECONDS", 0.05)
    refused = False

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/n2/" in request.path and "watch" in request.query:
            while not refused:  # noqa: ASYNC110 - polls what has no event
                await asyncio.sleep(0.01)
        if "/n2/" in request.path and refused:
            return status(403, "Forbidden", "the RoleBinding was deleted")
        return await script.answer(request)

    script.server.handler = answer
    async with caching(script.server, "n", "n2") as (caches, _, __):
        refused = True

        def behind() -> bool:
            try:
                caches.check("n2")
            except Unreachable:
                return True
            return False

        await until(behind)
        assert observe(caches, *KEY) is not None
