"""Pairs of workers are tried before users need them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually

from fulcrum.api.names import Role
from fulcrum.api.worker import EngineProgress, TransferCounters
from fulcrum.routing.tuning import RoutingTuning


def legs(engine: Engine) -> list[str]:
    return [seen.leg for seen in engine.seen if seen.headers["x-request-id"].startswith("prewarm-")]


async def test_every_ordered_pair_is_tried_once(make_site: MakeSite) -> None:
    engines = [Engine("p", Role.PREFILL), Engine("d", Role.DECODE), Engine("m", Role.MIXED)]
    site = await make_site(*engines, prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 6)
    assert all(sorted(legs(engine)) == ["decode"] * 2 + ["prefill"] * 2 for engine in engines)
    assert await site.metric('fulcrum_gateway_prewarms_total{outcome="warm"}') == 6
    assert await site.metric("fulcrum_gateway_prewarms_pending") == 0
    # One leg of each pair carries what the other returned, for a prompt that no prefix cache knows.
    received = [seen.body for seen in engines[1].seen if seen.leg == "decode"]
    assert {body["kv_transfer_params"]["from"] for body in received} == {"p", "m"}
    assert all(len(body["prompt"]) == 40 and body["max_tokens"] == 1 for body in received)
    assert received[0]["prompt"] != received[1]["prompt"]


async def test_a_worker_is_in_one_pair_at_a_time_and_those_in_use_come_first(make_site: MakeSite) -> None:
    at_once = most = 0
    order: list[str] = []

    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        order.append(f"{seen.leg} {engine.name}")
        await asyncio.sleep(0.01)
        at_once -= 1
        return False

    roles = {"d": Role.DECODE, "m": Role.MIXED, "p": Role.PREFILL}
    site = await make_site(*(Engine(name, role, behave=slow) for name, role in roles.items()), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 6)
    assert most == 1
    assert order[:2] == ["prefill p", "decode d"]


async def test_a_new_engine_process_is_tried_again_and_a_flip_is_not(make_site: MakeSite) -> None:
    prefill, decode = Engine("p", Role.PREFILL), Engine("d", Role.DECODE)
    site = await make_site(prefill, decode, prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert len(legs(prefill)) == len(legs(decode)) == 2
    record = decode.record()
    site.gateway.registry.put(msgspec.structs.replace(record, role=Role.PREFILL, role_epoch=1))
    assert site.gateway.prewarmer.pending == 0
    site.gateway.registry.put(msgspec.structs.replace(record, incarnation="another"))
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 4)
    assert len(legs(prefill)) == len(legs(decode)) == 4


async def test_failures_are_tried_again(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.workers.prewarm._RETRY_SECONDS", 0.01)
    failures = 2

    async def reset_twice(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            writer.transport.abort()
        return failures >= 0

    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=reset_twice), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert site.gateway.metrics.prewarms["reset"] == 2
    assert not any(worker.suspect for worker in site.gateway.registry.workers)


async def test_a_slow_pair_is_tried_again(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.workers.prewarm._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("fulcrum.gateway.workers.prewarm._SLOW_SECONDS", 2.0)
    slow = [True]

    async def slow_once(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "decode" and slow:
            slow.clear()
            await asyncio.sleep(2.1)
        return False

    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=slow_once), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert site.gateway.metrics.prewarms["slow"] == 1


class Pulling:
    """A decode engine and its agent: each decode leg counts as pulled or, while `blocked`, as computed."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.blocked: set[str] = set()
        """Names of prefill workers from which it cannot pull."""
        self.pulled = self.computed = self.failed = 0

    async def behave(self, engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "decode":
            self.count(seen.body["kv_transfer_params"]["from"], len(seen.body["prompt"]))
        return False

    def count(self, prefill: str, tokens: int) -> None:
        if prefill in self.blocked:
            self.computed += tokens
            self.failed += 1
        else:
            self.pulled += tokens
        self.tell()

    def tell(self) -> None:
        transfers = TransferCounters(
            pulled_tokens=self.pulled,
            computed_tokens=self.computed,
            failed_transfers=self.failed,
            failed_notifications=0,
            expired_requests=0,
        )
        self.agent.body = msgspec.json.encode(report(role=Role.DECODE, transfers=transfers))


@dataclass
class Cluster:
    """Two prefill workers, two decode workers, and what the latter pull."""

    site: Site
    pulling: dict[str, Pulling]

    def failing(self) -> set[tuple[str, str]]:
        return {(pair.prefill, pair.decode) for pair in self.site.gateway.prewarmer.report().failing}

    async def used(self, requests: int) -> set[tuple[str, str]]:
        """Paths of so many requests."""
        paths = set()
        for _ in range(requests):
            answer = await self.site.post({"model": "m", "prompt": "hello", "max_tokens": 3})
            assert answer.status == 200
            prefill, _, decode = answer.headers["x-fulcrum-path"].partition(",")
            paths.add((prefill, decode))
        return paths


MakeCluster = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def make_cluster(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeCluster]:
    """Canaries are verified within milliseconds instead of seconds."""
    agents: list[Agent] = []
    for name, seconds in {
        "canary._POLL_SECONDS": 0.01, "canary._BOOKED_SECONDS": 0.1, "prewarm._RETRY_SECONDS": 0.02,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"fulcrum.gateway.workers.{name}", seconds)

    async def make(blocked: dict[str, set[str]]) -> Cluster:
        pulling: dict[str, Pulling] = {}
        engines = [Engine(f"p{number}", Role.PREFILL) for number in range(2)]
        for name in ("d0", "d1"):
            agent = await Agent(b"").start()
            agents.append(agent)
            pulling[name] = Pulling(agent)
            pulling[name].blocked = blocked.get(name, set())
            pulling[name].tell()
            facts = {"agent_port": agent.port}
            engines.append(Engine(name, Role.DECODE, behave=pulling[name].behave, facts=facts))
        return Cluster(await make_site(*engines, prewarm=True), pulling)

    yield make
    for agent in agents:
        await agent.stop()


async def test_a_pair_whose_kv_is_recomputed_is_routed_around_and_comes_back(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fulcrum.routing.pairs.TUNING", RoutingTuning(first_pause_seconds=0.0125, longest_pause_seconds=0.1)
    )
    cluster = await make_cluster({"d0": {"p0"}})
    await eventually(lambda: cluster.failing() == {("p0", "d0")})
    await eventually(lambda: cluster.site.gateway.prewarmer.pending == 0)
    (pair,) = cluster.site.gateway.prewarmer.report().failing
    assert pair.why == "recomputed"
    assert pair.prefill_works >= 1
    assert pair.decode_works >= 1
    assert ("p0", "d0") not in await cluster.used(24)
    assert await cluster.site.metric('fulcrum_gateway_kv_pair_failures{prefill="p0",decode="d0"}') >= 1
    cluster.pulling["d0"].blocked = set()
    await eventually(lambda: not cluster.failing())
    await eventually(lambda: not cluster.site.gateway.registry.cluster.workers.broken)


async def test_a_worker_that_drains_is_left_alone_until_it_serves_again(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a canary leaves at a prefill worker is held for its peer, and the drain would wait for that."""
    monkeypatch.setattr("fulcrum.gateway.workers.prewarm._RETRY_SECONDS", 0.01)
    monkeypatch.setattr(
        "fulcrum.routing.pairs.TUNING", RoutingTuning(first_pause_seconds=0.0125, longest_pause_seconds=0.1)
    )
    cluster = await make_cluster({"d0": {"p0"}})
    await eventually(lambda: cluster.failing() == {("p0", "d0")})
    gateway, p0 = cluster.site.gateway, cluster.site.engines["p0"]
    gateway.registry.put(msgspec.structs.replace(p0.record(), role=Role.DRAINING, role_epoch=1))
    await eventually(lambda: gateway.prewarmer.pending == 0 and not gateway.prewarmer.running)
    before = len(legs(p0))
    p1 = next(worker for worker in gateway.registry.workers if worker.name == "p1")
    for _ in range(5):  # others are tried meanwhile, for longer than the pause before a retest
        warm = gateway.metrics.prewarms["warm"]
        gateway.prewarmer.joined(p1)
        await eventually(lambda: gateway.metrics.prewarms["warm"] > warm and gateway.prewarmer.pending == 0)  # noqa: B023
    assert len(legs(p0)) == before
    assert cluster.failing() == {("p0", "d0")}
    gateway.registry.put(msgspec.structs.replace(p0.record(), role=Role.PREFILL, role_epoch=2))
    await eventually(lambda: len(legs(p0)) > before)


async def test_failures_that_an_engine_counts_raise_suspicion(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.workers.prewarm._CALM_SECONDS", 0.0)
    cluster = await make_cluster({})
    await eventually(lambda: cluster.site.gateway.metrics.prewarms["warm"] >= 4)
    await eventually(lambda: cluster.site.gateway.prewarmer.pending == 0)
    await cluster.site.gateway.poller.poll()
    d1 = cluster.pulling["d1"]
    d1.blocked = {"p0", "p1"}
    assert not cluster.failing(), "nobody has looked"
    d1.failed += 1
    d1.tell()
    await cluster.site.gateway.poller.poll()
    await eventually(lambda: cluster.failing() == {("p0", "d1"), ("p1", "d1")})
    assert {decode for _, decode in await cluster.used(12)} == {"d0"}


async def test_a_decode_worker_that_can_pull_from_nobody_still_leaves_nobody_without_an_answer(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster({"d0": {"p0", "p1"}, "d1": {"p0", "p1"}})
    await eventually(lambda: len(cluster.failing()) == 4)
    assert await cluster.used(12) <= {("d0", ""), ("d1", ""), ("d0", "d0"), ("d1", "d1")}


@pytest.mark.parametrize("computes", ["decode", "prefill"])
async def test_a_pair_of_which_one_computes_is_slow_and_one_that_stands_still_is_failing(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, computes: str
) -> None:
    """A canary waits for its turn in a busy engine; a pull also waits for a busy peer."""
    monkeypatch.setattr("fulcrum.gateway.workers.canary._SILENCE_SECONDS", 0.3)
    monkeypatch.setattr("fulcrum.gateway.workers.canary._LEG_SECONDS", 2.0)
    transfers = TransferCounters(
        pulled_tokens=0, computed_tokens=0, failed_transfers=0, failed_notifications=0, expired_requests=0
    )

    def load(role: Role, *, still_seconds: float) -> bytes:
        progress = EngineProgress(steps=1, tokens=1, still_seconds=still_seconds)
        return msgspec.json.encode(report(role=role, running=0, waiting=1, transfers=transfers, progress=progress))

    agents = {role: await Agent(load(role, still_seconds=1000.0)).start() for role in (Role.PREFILL, Role.DECODE)}
    busy = Role(computes)
    agents[busy].body = load(busy, still_seconds=0.0)

    async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "decode":
            await asyncio.Event().wait()
        return False

    engines = [Engine(role.value, role, behave=hang, facts={"agent_port": agents[role].port}) for role in agents]
    site = await make_site(*engines, prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["slow"] >= 1)
    assert not site.gateway.prewarmer.report().failing
    agents[busy].body = load(busy, still_seconds=1000.0)
    await eventually(lambda: site.gateway.metrics.prewarms["decode_timeout"] >= 1)
    assert "decode_timeout" in [pair.why for pair in site.gateway.prewarmer.report().failing]
    for agent in agents.values():
        await agent.stop()
