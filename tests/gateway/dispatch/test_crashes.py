"""A request that ends engines is not given to a third; one that was unlucky with Pods and nodes is served."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually

from fulcrum.api import names
from fulcrum.api.names import Role
from fulcrum.api.worker import EXIT_ENGINE_DIED, EXIT_ENGINE_STALLED
from fulcrum.gateway.workers import watch

GOOD = {"model": "m", "prompt": "x", "max_tokens": 3}
POISON = {**GOOD, "prompt": "poison"}


def status(exit_code: int | None, *, running: bool, restarts: int) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": exit_code}}
    if running:
        return {"restartCount": restarts, "state": {"running": {}}, "lastState": ended if exit_code is not None else {}}
    return {"restartCount": restarts, "state": ended}


def pod(name: str, container: dict[str, Any] | None, *, deleted: bool = False) -> watch.Pod:
    metadata = {"name": name, "uid": name, "labels": {names.LABEL_COMPONENT: names.COMPONENT_WORKER}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    statuses = [container] if container is not None else []
    return msgspec.convert({"metadata": metadata, "status": {"containerStatuses": statuses}}, watch.Pod)


@pytest.mark.parametrize(
    ("container", "deleted", "end"),
    [
        (status(EXIT_ENGINE_DIED, running=False, restarts=2), False, ("w/2", True)),
        (status(EXIT_ENGINE_DIED, running=True, restarts=3), False, ("w/2", True)),
        ({"restartCount": 2, "state": {}, "lastState": {"terminated": {"exitCode": 71}}}, False, ("w/2", True)),
        (status(EXIT_ENGINE_STALLED, running=False, restarts=0), False, ("w/0", False)),
        (status(137, running=False, restarts=0), False, ("w/0", False)),
        (status(None, running=True, restarts=1), True, ("w/1", False)),
        (status(EXIT_ENGINE_DIED, running=True, restarts=1), True, ("w/1", False)),
        (status(EXIT_ENGINE_DIED, running=False, restarts=1), True, ("w/1", False)),
        (status(None, running=True, restarts=1), False, None),
        (None, False, None),
        (None, True, ("w/0", False)),
    ],
)
def test_how_an_engine_ended(container: dict[str, Any] | None, deleted: bool, end: tuple[str, bool] | None) -> None:
    assert watch.end_of(pod("w", container, deleted=deleted)) == end


async def crash(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    if seen.body["prompt"] != "poison":
        return False
    writer.transport.abort()
    return True


async def site_of(make_site: MakeSite, crashed: dict[str, bool | None], **facts: Any) -> Site:
    """Four workers that break off when given the poison, and what their Pods will say of it."""
    engines = [
        Engine(f"w{number}", Role.MIXED, behave=crash, facts={"incarnation": f"w{number}/0"}) for number in range(4)
    ]
    site = await make_site(*engines, **facts)
    registry = site.gateway.registry
    registry.learns_ends = True
    for name, how in crashed.items():
        if how is not None:
            registry.ended(name, f"{name}/0", crashed=how)
    return site


def asked(site: Site) -> int:
    return sum(len(engine.seen) for engine in site.engines.values())


@pytest.mark.parametrize("stream", [False, True])
async def test_no_third_engine_crashes(make_site: MakeSite, stream: bool) -> None:
    site = await site_of(make_site, dict.fromkeys(("w0", "w1", "w2", "w3"), True))
    answer = await site.post({**POISON, "stream": stream})
    assert (answer.status, answer.json()["error"]["code"]) == (502, "engines_crashed")
    assert "retry-after" not in answer.headers
    assert asked(site) == 2
    assert await site.metric('fulcrum_gateway_spared_total{cause="two_crashed"') == 1


@pytest.mark.parametrize("how", [False, None], ids=["deleted", "nobody says"])
async def test_pods_that_were_taken_away_are_no_crash(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, how: bool | None
) -> None:
    monkeypatch.setattr("fulcrum.gateway.dispatch.crashes._REPORT_SECONDS", 0.2)
    site = await site_of(make_site, dict.fromkeys(("w0", "w1", "w2", "w3"), how))
    await site.post(POISON)
    assert asked(site) == 3
    assert await site.metric("fulcrum_gateway_spared_total") == 0


async def test_the_report_is_waited_for(make_site: MakeSite) -> None:
    site = await site_of(make_site, {})
    answer = asyncio.ensure_future(site.post(POISON))
    await eventually(lambda: asked(site) == 2)
    for number in range(4):
        site.gateway.registry.ended(f"w{number}", f"w{number}/0", crashed=True)
    assert (await answer).status == 502
    assert asked(site) == 2


async def test_the_others_go_on(make_site: MakeSite) -> None:
    site = await site_of(make_site, dict.fromkeys(("w0", "w1", "w2", "w3"), True))
    await site.post(POISON)
    for _ in range(4):
        assert (await site.post(GOOD)).status == 200
