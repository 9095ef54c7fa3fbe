"""Requests that find no worker: held within bounds, sent once one runs, and told to the operator."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from tests.gateway.conftest import Behave, Engine, MakeSite, Seen, Site, eventually

from fulcrum.api.gateway import DemandReport, GatewayHold, GatewayLimits
from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionQueue, ClassKind, ClassMatch, QosClass
from fulcrum.gateway.worker_record import WorkerRecord

WHOLE = {"model": "m", "prompt": "x", "max_tokens": 3}
STREAM = {**WHOLE, "stream": True}
HOLD = GatewayHold(max_requests=2, max_wait_seconds=600.0)


async def asleep(
    make_site: MakeSite,
    bounds: GatewayHold | None = HOLD,
    *,
    behave: Behave | None = None,
    limits: GatewayLimits | None = None,
    **config: Any,
) -> tuple[Site, Engine]:
    """A gateway without workers, and an engine that it does not know yet."""
    engine = Engine("m", Role.MIXED, behave=behave)
    site = await make_site(engine, limits=limits, config={"hold": bounds, **config})
    site.gateway.registry.replace(())
    return site, engine


def wake(site: Site, engine: Engine) -> None:
    record = WorkerRecord(name=engine.name, role=engine.role, host=engine.host, port=engine.port)
    site.gateway.registry.replace((record,))


async def report(site: Site) -> DemandReport:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(b"GET /demand HTTP/1.1\r\nHost: g\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=DemandReport)


async def holds(site: Site, number: int) -> None:
    await eventually(lambda: site.gateway.hold.held == number)


async def test_what_is_held_is_served_once_a_worker_runs(make_site: MakeSite) -> None:
    site, engine = await asleep(make_site)
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(site.post(WHOLE))
        stream = group.create_task(site.post(STREAM))
        await holds(site, 2)
        assert (await report(site)).held == 2
        assert await site.metric("fulcrum_gateway_held_requests") == 2
        wake(site, engine)
    assert (whole.result().status, stream.result().status) == (200, 200)
    assert stream.result().complete
    await holds(site, 0)
    told = await report(site)
    assert (told.held, told.first_token_seconds is not None, told.idle_seconds is not None) == (0, True, True)
    assert await site.metric('fulcrum_gateway_held_total{outcome="served"') == 2
    assert await site.metric("fulcrum_gateway_rejected_total") == 0
    assert site.gateway.metrics.of_class("default").arrivals == 2


async def test_beyond_the_bound_is_refused_at_once(make_site: MakeSite) -> None:
    site, engine = await asleep(make_site)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(site.post(WHOLE)) for _ in range(2)]
        await holds(site, 2)
        refused = await site.post(STREAM)
        wake(site, engine)
    assert (refused.status, refused.headers["x-fulcrum-rejected"], refused.headers["retry-after"]) == (
        503,
        "Waking",
        "10",
    )
    assert refused.json()["error"]["code"] == "waking"
    assert {task.result().status for task in waiting} == {200}
    assert await site.metric('fulcrum_gateway_held_total{outcome="full"') == 1
    assert await site.metric("fulcrum_gateway_rejected_total") == 1
    assert await site.metric('fulcrum_gateway_rejected_total{class="default",reason="Waking"') == 1


async def test_the_wait_ends(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site, GatewayHold(max_wait_seconds=0.05))
    refused = await site.post(WHOLE)
    assert (refused.status, refused.headers["x-fulcrum-rejected"]) == (503, "Waking")
    assert "gateway.hold.maxWait" in refused.json()["error"]["message"]
    assert await site.metric('fulcrum_gateway_held_total{outcome="timed_out"') == 1
    assert await site.metric("fulcrum_gateway_rejected_total") == 1
    assert await site.metric('fulcrum_gateway_rejected_total{class="default",reason="Waking"') == 1


async def test_the_request_timeout_ends_the_wait(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site, limits=GatewayLimits(request_timeout_seconds=0.2))
    refused = await site.post(WHOLE)
    assert (refused.status, refused.headers["x-fulcrum-rejected"]) == (504, "TimedOut")
    assert (site.gateway.hold.held, site.gateway.hold.outcomes["left"]) == (0, 1)


async def test_a_held_stream_is_not_silent(make_site: MakeSite) -> None:
    site, engine = await asleep(make_site, heartbeat_seconds=0.05)
    client = await site.connect()
    client.post(STREAM)
    status, _ = await client.read_head()
    assert (status, await client.read_chunk()) == (200, b": waiting\n\n")
    wake(site, engine)
    read = b""
    while b"[DONE]" not in read:
        read += await client.reader.read(1000)
    assert read.count(b"data: {") == 3


async def test_a_stream_whose_wait_ends_gets_an_error_event(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site, GatewayHold(max_wait_seconds=0.5), heartbeat_seconds=0.05)
    client = await site.connect()
    client.post(STREAM)
    assert (await client.read_head())[0] == 200
    read = await client.reader.read()
    assert b'"code":"waking"' in read
    assert not read.endswith(b"0\r\n\r\n"), "the stream has no end"


async def test_a_client_that_leaves_is_held_no_longer(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site)
    client = await site.connect()
    client.post(WHOLE)
    await holds(site, 1)
    client.close()
    await holds(site, 0)
    assert site.gateway.hold.outcomes["left"] == 1
    told = await report(site)
    assert told.idle_seconds is not None
    assert told.idle_seconds < told.up_seconds


async def test_a_gateway_that_stops_sends_what_waits_elsewhere(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site)
    waiting = asyncio.create_task(site.post(WHOLE))
    await holds(site, 1)
    stopping = asyncio.create_task(site.gateway.stop())
    refused = await waiting
    assert (refused.status, refused.headers["x-fulcrum-rejected"]) == (503, "ShuttingDown")
    with contextlib.suppress(asyncio.CancelledError):
        await stopping


async def test_the_wait_is_known_of_what_is_sent(make_site: MakeSite) -> None:
    """Learning takes it off the measured latency (tests/admission/test_waiting.py)."""
    answers = asyncio.Event()

    async def behave(_engine: Engine, _seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        await answers.wait()
        return False

    site, engine = await asleep(make_site, behave=behave)
    waiting = asyncio.create_task(site.post(STREAM))
    await holds(site, 1)
    held_at = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() > held_at + 0.2)
    wake(site, engine)
    await eventually(lambda: len(engine.seen) == 1)
    (flight,) = site.gateway.registry.cluster.prefilling.values()
    assert flight.waited_seconds >= 0.2
    answers.set()
    assert (await waiting).status == 200


async def test_with_a_queue_too_what_finds_no_worker_is_held(make_site: MakeSite) -> None:
    queue = AdmissionQueue(max_wait="10m", max_requests=10)
    site, engine = await asleep(make_site, admission=Admission(queue=queue))
    waiting = asyncio.create_task(site.post(WHOLE))
    await holds(site, 1)
    assert await site.metric("fulcrum_gateway_queued") == 0
    wake(site, engine)
    assert (await waiting).status == 200
    assert await site.metric('fulcrum_gateway_held_total{outcome="served"') == 1
    assert await site.metric("fulcrum_gateway_queue_outcomes_total") == 0
    assert await site.metric("fulcrum_gateway_rejected_total") == 0


BATCH = QosClass(name="spare", priority=0, kind=ClassKind.BATCH, match=ClassMatch(header="X-Tier", value="spare"))
SPARE = "X-Tier: spare\r\n"


async def test_a_batch_request_wakes_a_cluster_and_keeps_it_awake(make_site: MakeSite) -> None:
    answers = asyncio.Event()

    async def behave(_engine: Engine, _seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        await answers.wait()
        return False

    site, engine = await asleep(make_site, behave=behave, admission=Admission(classes=(BATCH,)))
    batch = asyncio.create_task(site.post(WHOLE, headers=SPARE))
    await holds(site, 1)
    assert (await report(site)).held == 1
    wake(site, engine)
    await eventually(lambda: len(engine.seen) == 1)
    while_it_runs = await report(site)
    answers.set()
    assert (await batch).status == 200
    assert (while_it_runs.held, while_it_runs.idle_seconds) == (0, 0.0)
    assert site.gateway.metrics.of_class("spare").arrivals == 0, "it is no load"


async def test_without_bounds_nothing_is_held(make_site: MakeSite) -> None:
    site, _ = await asleep(make_site, None)
    refused = await site.post(WHOLE)
    assert (refused.status, refused.headers["x-fulcrum-rejected"]) == (503, "NoWorker")
    assert await site.metric('fulcrum_gateway_rejected_total{reason="NoWorker"') == 1
