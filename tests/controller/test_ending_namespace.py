"""A namespace that is being deleted: nothing is made there, and nothing is said about it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from tests.controller.test_caches import KEY, Script, caching, made, script
from tests.kube.conftest import Server, page, server, status

from fulcrum.controller.cluster_watches import ClusterWatches
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import LEASE, POD, NamespaceEndsError
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.reconcile import NAMESPACE_SECONDS, Reconciler
from fulcrum.controller.rehearsals import Rehearsals
from fulcrum.kube import ApiError
from fulcrum.telemetry import Agents

__all__ = ["script", "server"]  # fixtures
ENDS = 'pods "x" is forbidden: unable to create new content in namespace n because it is being terminated'
SPEC = {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}]}


@pytest.fixture
def posts(script: Script, server: Server) -> list[str]:
    """What was written: the API server refuses all that is new, and shows an InferenceCluster until it goes, too."""
    found: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method in ("POST", "PATCH"):
            found.append(request.path)
            return status(403, "Forbidden", ENDS)
        if request.path.endswith("/inferenceclusters") and "watch" not in request.query:
            return page(5, made("c", 2) | {"spec": SPEC})
        if "secrets" in request.path:
            return status(404, "NotFound", "none")
        return await script.answer(request)

    script.pods = (5, [])
    server.handler = answer
    return found


@asynccontextmanager
async def reconciling(script: Script) -> AsyncIterator[tuple[Reconciler, Rehearsals]]:
    async def no_secret(_: str, __: str) -> None:
        return None

    metrics = Metrics()
    async with (
        caching(script.server) as (caches, kube, _),
        Agents() as agents,
        ClusterWatches(agents, metrics, no_secret, wake=lambda _: None) as watches,
        Rehearsals(metrics, wake=lambda _: None, now=lambda: datetime.now(UTC)) as rehearsals,
    ):
        yield (
            Reconciler(
                kube, caches, agents, watches, metrics, rehearsals=rehearsals, identity="t",
                installation=Installation(), now=lambda: datetime.now(UTC),
            ),
            rehearsals,
        )  # fmt: skip


async def test_nothing_is_made_and_nothing_is_said(
    script: Script, posts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with reconciling(script) as (reconciler, _):
        first = await reconciler.reconcile(KEY)
        tried = len(posts)
        again = await reconciler.reconcile(KEY)
    assert first == NAMESPACE_SECONDS
    assert again is not None
    assert 0 < again <= NAMESPACE_SECONDS
    assert len(posts) == tried > 0, "the next tick tries nothing"
    assert not any("/events" in path or path.endswith("/status") for path in posts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and "fulcrum" in record.name]


async def test_only_what_is_new_in_such_a_namespace_ends_a_tick(script: Script, posts: list[str]) -> None:
    async with caching(script.server) as (_, kube, __):
        with pytest.raises(NamespaceEndsError):
            await kube.create(POD, made("x", 0))
        with pytest.raises(ApiError, match="terminated"):  # an election knows what to do
            await kube.create(LEASE, made("x", 0))
    assert len(posts) == 2
