"""What a gateway knows of workers with ranks of data parallel: their number, their load, and which pairs move KV."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.gateway.agents import SLOW, Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually
from tests.gateway.workers.test_watch import of_pool, worker_config

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, RankReport, TransferCounters
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers import watch
from fulcrum.gateway.workers.registry import WorkerRegistry

RANK = "x-data-parallel-rank"


@pytest.mark.parametrize(
    ("said", "ranks"), [(1, 1), (2, 2), (8, 8), (64, 64), (1024, 1024), (0, 1), (-2, 1), (1025, 1), (10**20, 1)]
)
def test_the_configuration_says_how_many_ranks_there_are(
    said: int, ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    watch._ranks.cache_clear()
    document = json.dumps(json.loads(worker_config("h100")) | {"dataParallel": said})
    with caplog.at_level(logging.WARNING):
        records = [of_pool("h100", document=document) for _ in range(3)]
    assert {record.data_parallel for record in records} == {ranks}
    lines = [each for each in caplog.messages if "worker_config_unusable" in each]
    assert len(lines) == (ranks != said), "once, not with each event"


def of(rank: int, **figures: Any) -> RankReport:
    return RankReport(rank=rank, **figures)


def record(**changes: Any) -> WorkerRecord:
    facts: dict[str, Any] = {"name": "w", "role": Role.DECODE, "host": "127.0.0.1", "port": 1, "data_parallel": 4}
    return WorkerRecord(**facts | changes)


async def test_a_worker_keeps_its_ranks_until_it_is_another_process_or_has_another_number() -> None:
    registry = WorkerRegistry(Metrics())
    registry.put(record())
    (first,) = registry.workers
    assert [rank.name for rank in first.ranks] == [f"w/dp{number}" for number in range(4)]
    registry.put(record(role=Role.PREFILL, role_epoch=1))
    assert registry.workers == [first]
    assert all(registry.of(rank.state) is rank for rank in first.ranks)
    registry.took_kv_dtype(first, "fp8")
    for changes in ({"incarnation": "2"}, {"incarnation": "2", "data_parallel": 2}, {"data_parallel": 1}):
        registry.put(record(**changes))
        (worker,) = registry.workers
        assert worker is not first
        assert len(worker.ranks) == changes.get("data_parallel", 4)
        assert all(registry.of(rank.state) is rank for rank in worker.ranks)
        assert len(registry.cluster.workers.by_name) == len(worker.ranks)
    registry.remove("w", "deleted")
    assert not registry.cluster.workers.by_name


async def test_another_revision_keeps_the_process_and_renews_what_routing_knows_of_its_ranks() -> None:
    registry = WorkerRegistry(Metrics())
    registry.put(record(kv_cache_dtype="fp8"))
    (worker,) = registry.workers
    before = [rank.state for rank in worker.ranks]
    registry.took_kv_dtype(worker, "fp8_ds_mla")
    assert registry.workers == [worker]
    assert not {id(state) for state in before} & {id(rank.state) for rank in worker.ranks}
    assert [*registry.cluster.workers.by_name.values()] == [rank.state for rank in worker.ranks]


def counters(*, pulled: int = 0, computed: int = 0, failed: int = 0) -> TransferCounters:
    return TransferCounters(
        pulled_tokens=pulled, computed_tokens=computed, failed_transfers=failed, failed_notifications=0,
        expired_requests=0,
    )  # fmt: skip


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    one = await Agent(report()).start()
    yield one
    await one.stop()


async def test_speed_and_room_are_those_of_a_rank(make_site: MakeSite, agent: Agent) -> None:
    said = report(kv_capacity_tokens=800_000, max_batch=64, max_batched_tokens=8192, ranks=tuple(map(of, range(8))))
    agent.body = msgspec.json.encode(said)
    site = await make_site(Engine("m", Role.MIXED, facts={"agent_port": agent.port, "data_parallel": 8, "pool": "x"}))
    await eventually(lambda: all(rank.state.engine.known for rank in site.gateway.registry.ranks))
    for rank in site.gateway.registry.ranks:
        speed = rank.state.engine.speed
        assert speed.coefficients == SLOW
        assert (speed.kv_capacity_tokens, speed.max_batch, speed.max_batched_tokens) == (100_000, 64, 8192)


async def test_decode_steps_are_learnt_from_each_rank(make_site: MakeSite, agent: Agent) -> None:
    """A rank that was not reported is unknown, and the others are heard all the same."""
    load: LoadReport = report(ranks=(of(0, running=3, waiting=1), of(2, running=1, waiting=0)))
    agent.body = msgspec.json.encode(load)
    site = await make_site(Engine("m", Role.MIXED, facts={"agent_port": agent.port, "data_parallel": 4, "pool": "x"}))
    gateway = site.gateway
    gateway.poller.alone = False
    await gateway.poller.poll()
    (worker,) = gateway.registry.workers
    assert [rank.report.running for rank in worker.ranks if rank.report is not None] == [3, None, 1, None]
    assert [rank.state.foreign for rank in worker.ranks] == [True, False, True, False]
    assert worker.report is not None
    assert worker.report.running == 0, "the totals are as the agent says them"
    agent.body = b"{}"
    await gateway.poller.poll()
    assert [rank.report for rank in worker.ranks] == [None] * 4


class Pulling:
    """A decode worker and its agent: each rank pulls, or computes what comes from the ranks in `blocked`."""

    def __init__(self, agent: Agent, ranks: int) -> None:
        self.agent, self.blocked = agent, set[tuple[str, int]]()
        self.ranks = [Counter[str]() for _ in range(ranks)]
        self.last: dict[str, str] = {}
        self.tell()

    async def behave(self, _engine: Engine, seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "decode":
            rank, tokens = int(seen.headers[RANK]), len(seen.body["prompt"])
            blocked = (seen.body["kv_transfer_params"]["from"], rank) in self.blocked
            self.ranks[rank]["computed" if blocked else "pulled"] += tokens
            self.ranks[rank]["failed"] += blocked
            self.tell()
        return False

    def tell(self) -> None:
        ranks = tuple(of(n, running=0, waiting=0, transfers=counters(**rank)) for n, rank in enumerate(self.ranks))
        self.agent.body = msgspec.json.encode(report(role=Role.DECODE, ranks=ranks))


class Prefill(Engine):
    """Tells which of its ranks has the KV."""

    async def whole(self, seen: Seen, writer: asyncio.StreamWriter, **extra: Any) -> None:
        kv = {"do_remote_prefill": True, "from": f"{self.name}/dp{seen.headers[RANK]}"}
        await super().whole(seen, writer, **extra, **({"kv_transfer_params": kv} if seen.leg == "prefill" else {}))


async def test_each_pair_of_ranks_is_tried_and_a_rank_that_pulls_from_none_is_left_out(
    make_site: MakeSite, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {
        "canary._POLL_SECONDS": 0.01, "canary._BOOKED_SECONDS": 0.1, "prewarm._RETRY_SECONDS": 0.02,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"fulcrum.gateway.workers.{name}", seconds)
    pulling = Pulling(agent, 3)
    pulling.blocked = {("p/dp0", 1), ("p/dp1", 1)}
    prefill = Prefill("p", Role.PREFILL, facts={"data_parallel": 2})
    facts = {"agent_port": agent.port, "data_parallel": 3}
    decode = Prefill("d", Role.DECODE, behave=pulling.behave, facts=facts)
    site = await make_site(prefill, decode, prewarm=True)
    metrics, prewarmer = site.gateway.metrics, site.gateway.prewarmer
    # Six pairs each way, and none within a worker.
    await eventually(lambda: metrics.prewarms["recomputed"] >= 2 and sum(metrics.prewarms.values()) >= 12)
    await eventually(lambda: not prewarmer.pending and not prewarmer.running)
    pairs = {
        (seen.body["kv_transfer_params"]["from"], seen.headers[RANK]) for seen in decode.seen if seen.leg == "decode"
    }
    assert pairs == {(f"p/dp{one}", str(other)) for one in range(2) for other in range(3)}
    assert site.gateway.registry.cluster.workers.broken == {("p/dp0", "d/dp1"), ("p/dp1", "d/dp1")}
    (failing,) = prewarmer.report().failing
    assert (failing.prefill, failing.decode) == ("p", "d"), "the operator knows workers"
    assert failing.prefill_works == 2, "each of its ranks works with the two others"
    assert failing.decode_works == 0, "its worst rank pulls from none: it is to blame"
    assert await site.metric('fulcrum_gateway_kv_pair_failures{prefill="p",decode="d"}') >= 1
    paths = set()
    for _ in range(12):
        answer = await site.post({"model": "m", "prompt": "hello", "max_tokens": 3})
        paths.add(answer.headers["x-fulcrum-path"].partition(",")[2])
    assert paths == {"d/dp0", "d/dp2"}


async def test_how_many_pairs_of_ranks_are_still_to_try(make_site: MakeSite) -> None:
    sizes = {"a": 8, "b": 2, "c": 1}
    site = await make_site(*(Engine(name, Role.MIXED, facts={"data_parallel": size}) for name, size in sizes.items()))
    prewarmer, registry = site.gateway.prewarmer, site.gateway.registry
    assert prewarmer.pending == 0
    for worker in registry.workers:
        prewarmer.joined(worker)
    every = 2 * (8 * 2 + 8 + 2)
    assert prewarmer.pending == every
    prewarmer.queue_new(asyncio.get_running_loop().time())
    assert prewarmer.pending == every


async def test_failures_of_one_rank_raise_suspicion_of_its_pairs_only(make_site: MakeSite, agent: Agent) -> None:
    pulling = Pulling(agent, 4)
    prefill = Engine("p", Role.PREFILL, facts={"data_parallel": 2})
    decode = Engine("d", Role.DECODE, facts={"agent_port": agent.port, "data_parallel": 4})
    site = await make_site(prefill, decode)
    prewarmer, site.gateway.poller.suspected = site.gateway.prewarmer, site.gateway.prewarmer.suspected
    await site.gateway.poller.poll()
    assert not prewarmer.pending
    pulling.ranks[3]["failed"] += 1
    pulling.tell()
    await site.gateway.poller.poll()
    assert prewarmer._queued == {("p/dp0", "d/dp3"), ("p/dp1", "d/dp3")}
