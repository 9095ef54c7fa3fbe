"""Requests to workers with ranks of data parallel: each leg says which rank it is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually
from tests.gateway.dispatch.test_resume import PROMPT, check
from tests.gateway.models import Cut, Model

from fulcrum.api.names import Role

RANK = "x-data-parallel-rank"
BODY = {"model": "m", "prompt": "hello", "max_tokens": 3}


def engine(name: str, role: Role, ranks: int, **options: Any) -> Engine:
    return Engine(name, role, facts={"data_parallel": ranks}, **options)


def ranks_of(one: Engine, leg: str = "") -> list[str | None]:
    return [seen.headers.get(RANK) for seen in one.seen if leg in ("", seen.leg)]


async def posts(site: Site, count: int, body: dict[str, Any] = BODY) -> list[str]:
    """Paths of so many requests that are under way at once."""
    answers = await asyncio.gather(*(site.post(body) for _ in range(count)))
    assert {answer.status for answer in answers} == {200}
    return [answer.headers["x-fulcrum-path"] for answer in answers]


@pytest.mark.parametrize("stream", [False, True])
async def test_both_legs_name_their_rank_and_the_path_says_it(make_site: MakeSite, stream: bool) -> None:
    prefill, decode = engine("p", Role.PREFILL, 2), engine("d", Role.DECODE, 8)
    site = await make_site(prefill, decode)
    for _ in range(3):
        (path,) = await posts(site, 1, BODY | {"stream": stream})
        assert path == f"p/dp{ranks_of(prefill)[-1]},d/dp{ranks_of(decode)[-1]}"


async def test_requests_at_once_are_spread_over_the_ranks(make_site: MakeSite) -> None:
    go_on = asyncio.Event()

    async def wait(_engine: Engine, _seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        await go_on.wait()
        return False

    mixed = engine("m", Role.MIXED, 8, behave=wait)
    site = await make_site(mixed)
    asked = asyncio.ensure_future(posts(site, 16))
    await eventually(lambda: len(mixed.seen) == 16)
    assert await site.metric('fulcrum_gateway_worker_in_flight{worker="m"}') == 16
    for rank in range(8):
        assert await site.metric(f'fulcrum_gateway_worker_rank_in_flight{{worker="m",rank="{rank}"}}') == 2
    go_on.set()
    assert sorted(await asked) == sorted([f"m/dp{rank}" for rank in range(8)] * 2)
    assert sorted(map(str, ranks_of(mixed))) == sorted([str(rank) for rank in range(8)] * 2)


async def test_a_worker_without_data_parallelism_is_told_no_rank(make_site: MakeSite) -> None:
    prefill, decode = engine("p", Role.PREFILL, 1), engine("d", Role.DECODE, 2)
    site = await make_site(prefill, decode)
    (path,) = await posts(site, 1)
    assert path.startswith("p,d/dp")
    assert ranks_of(prefill) == [None]
    assert ranks_of(decode) != [None]
    page = await site.page()
    assert 'worker_rank_in_flight{fulcrum_cluster="c"' in page
    assert 'rank="0",worker="p"' not in page


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_client_chooses_no_rank(make_site: MakeSite, ranks: int) -> None:
    mixed = engine("m", Role.MIXED, ranks)
    site = await make_site(mixed)
    answer = await site.post(BODY, headers="X-Data-Parallel-Rank: 7\r\n")
    assert answer.status == 200
    assert ranks_of(mixed) == ([None] if ranks == 1 else [answer.headers["x-fulcrum-path"].removeprefix("m/dp")])


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_another_worker_goes_on_where_one_fails_and_no_other_rank_of_it_is_tried(
    make_site: MakeSite, leg: str
) -> None:
    async def fail(_engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == leg:
            writer.transport.abort()
        return seen.leg == leg

    engines = [engine(f"{role.value[0]}{number}", role, 4) for role in (Role.PREFILL, Role.DECODE) for number in (0, 1)]
    bad = engines[0 if leg == "prefill" else 2]
    bad.behave = fail
    site = await make_site(*engines)
    paths = await posts(site, 1) + await posts(site, 1) + await posts(site, 4)
    assert not any(f"{bad.name}/" in path for path in paths)
    assert len(ranks_of(bad, leg)) <= 1, "the first failure is the worker's"
    assert [worker.name for worker in site.gateway.registry.workers if worker.suspect] == [bad.name] * len(bad.seen)


async def test_a_prefill_is_pulled_by_another_worker_where_the_first_was_never_reached(make_site: MakeSite) -> None:
    prefill, lost, decode = engine("p", Role.PREFILL, 4), engine("d0", Role.DECODE, 2), engine("d1", Role.DECODE, 2)
    site = await make_site(prefill, lost, decode)
    await lost.stop()
    await posts(site, 6)
    assert len(ranks_of(prefill, "prefill")) == 6, "none was done twice"
    assert len(ranks_of(decode, "decode")) == 6


@pytest.mark.parametrize("how", ["reset", "error"])
async def test_a_stream_goes_on_on_a_rank_of_another_worker(make_site: MakeSite, how: str) -> None:
    models = [
        Model(name, role, facts={"data_parallel": 4})
        for name, role in (("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE))
    ]
    for model in models[2:]:
        model.cuts = [Cut(5, how)]
    site = await make_site(*models)
    check(await site.post(PROMPT), PROMPT)
    assert site.gateway.metrics.resumes["resumed"] >= 1
    assert all(rank in ("0", "1", "2", "3") for model in models for rank in ranks_of(model))
    # The probe leaves the prompt in the prefix cache of the rank that then prefills it.
    (probed,) = [model for model in models if any(_probes(seen) for seen in model.seen)]
    at = next(number for number, seen in enumerate(probed.seen) if _probes(seen))
    assert ranks_of(probed)[at] == ranks_of(probed)[at + 1]


def _probes(seen: Seen) -> bool:
    return seen.leg == "whole" and seen.body["max_tokens"] == 1


async def test_an_answer_of_one_rank_says_nothing_of_the_order_of_another(make_site: MakeSite) -> None:
    """Prompts are answered in turn on one rank: a later request to another rank may well be answered earlier."""
    go_on = asyncio.Event()

    async def wait(_engine: Engine, seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "prefill" and len(prefill.seen) == 1:
            await go_on.wait()
        return False

    prefill, decode = engine("p", Role.PREFILL, 2, behave=wait), engine("d", Role.DECODE, 1)
    site = await make_site(prefill, decode)
    first = asyncio.ensure_future(site.post(BODY))
    await eventually(lambda: len(prefill.seen) == 1)
    await posts(site, 1)
    await posts(site, 1)
    (rank,) = [rank for rank in site.gateway.registry.ranks if rank.state.prompts.legs]
    (connection,) = [each for each in rank.engine._open if not each.answered]
    assert not rank.engine._overtaken(connection)
    go_on.set()
    assert (await first).status == 200
