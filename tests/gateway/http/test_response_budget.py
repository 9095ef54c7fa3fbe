"""Large answers that come at the same moment: what they take together is bounded, each gets its turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Client, Engine, MakeSite, Seen, Site, eventually
from tests.gateway.http.test_slow_readers import slow_client
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.gateway.http.response_budget import LARGE_BYTES, ResponseBudget
from fulcrum.gateway.http.slow_readers import STALL_SECONDS

BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
LARGE = 1_000_000


@dataclass(eq=False)
class Waiting:
    found: bool = False

    def budget_granted(self) -> None:
        self.found = True


def test_who_finds_no_room_waits_in_order() -> None:
    room = ResponseBudget(100)
    first, second, third, small = (Waiting() for _ in range(4))
    assert room.take(first, 60)
    assert not room.take(second, 60)
    assert not room.take(third, 30)  # would fit, but it is not its turn
    assert room.waiting
    room.release(first)
    assert (second.found, third.found, room.waiting, room.total_bytes) == (True, True, 0, 90)
    assert room.take(small, 10)


def test_who_leaves_while_waiting_lets_the_next_one_in() -> None:
    room = ResponseBudget(100)
    first, second, third = (Waiting() for _ in range(3))
    assert room.take(first, 60)
    assert not room.take(second, 60)
    assert not room.take(third, 30)
    room.release(second)
    assert (second.found, third.found, room.total_bytes) == (False, True, 90)


def test_one_that_is_larger_than_all_room_comes_alone() -> None:
    room = ResponseBudget(100)
    small, huge = Waiting(), Waiting()
    assert room.take(small, 10)
    assert not room.take(huge, 1_000)
    room.release(small)
    assert huge.found
    assert not room.take(small, 10)
    room.release(huge)
    assert small.found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 150)), max_size=80))
def test_room_is_never_overfilled_nor_left_idle(steps: list[tuple[int, int]]) -> None:
    room = ResponseBudget(100)
    sizes: dict[Waiting, int] = {}
    everyone = [Waiting() for _ in range(10)]
    for number, size in steps:
        one = everyone[number]
        if one in sizes:
            room.release(one)
            del sizes[one]
        else:
            one.found = room.take(one, size)
            sizes[one] = size
        held = [sizes[each] for each in sizes if each.found]
        assert room.total_bytes == sum(held)
        assert sum(held) <= 100 or len(held) == 1
        assert room.waiting == len(sizes) - len(held)
        assert held or not sizes
    for one in list(sizes):
        room.release(one)
    assert (room.total_bytes, room.waiting) == (0, 0)


async def large(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    if seen.body["prompt"] == "x":
        return False
    await engine.send(writer, 200, {"choices": [{"text": "x" * LARGE}]})
    return True


async def crowded(make_site: MakeSite, count: int) -> tuple[Site, list[Client]]:
    """Clients that asked for a large answer each and do not read; there is room for two, the others wait."""
    site = await make_site(Engine("m", Role.MIXED, behave=large))
    room = site.gateway.response_budget
    room.most_bytes = 2 * LARGE + LARGE // 2
    clients = [await slow_client(site, 32 * 1024) for _ in range(count)]
    for client in clients:
        client.post({**BODY, "prompt": "large"})
    await eventually(lambda: room.waiting and len(site.gateway.slow_readers) == 2)
    return site, clients


async def test_a_burst_of_large_answers_waits_at_the_engine(make_site: MakeSite) -> None:
    site, clients = await crowded(make_site, 12)
    room = site.gateway.response_budget
    unsent = sum(connection.unsent_bytes() for connection in site.gateway.connections)
    assert LARGE_BYTES < unsent <= room.total_bytes <= room.most_bytes
    small, *answers = await asyncio.gather(site.post(BODY), *(client.answer() for client in clients))
    assert small.status == 200
    assert all(answer.status == 200 and len(answer.body) > LARGE for answer in answers)
    await eventually(lambda: not room.total_bytes)
    assert site.gateway.slow_readers.cut == {"stalled": 0, "budget": 0}
    assert await site.metric('fulcrum_gateway_legs_total{leg="whole",outcome="answered"}') == 13


async def test_who_does_not_read_soon_leaves_room_that_others_wait_for(make_site: MakeSite) -> None:
    site, mute = await crowded(make_site, 4)
    quick = await site.connect()
    # Each mute client could stay for so long if nobody waited.
    site.gateway.slow_readers._stall_seconds = deadline_seconds(STALL_SECONDS)
    began = asyncio.get_running_loop().time()
    quick.post({**BODY, "prompt": "large"})
    assert len((await quick.answer()).body) > LARGE
    assert asyncio.get_running_loop().time() - began < deadline_seconds(STALL_SECONDS)
    # The last ones are in nobody's way.
    assert 2 <= site.gateway.slow_readers.cut["stalled"] <= 4
    assert len(mute) == 4


@pytest.mark.parametrize("leaves", [False, True])
async def test_waiting_for_room_is_not_the_workers_fault(make_site: MakeSite, leaves: bool) -> None:
    site = await make_site(Engine("m", Role.MIXED, behave=large))
    room = site.gateway.response_budget
    room.keep("somebody", room.most_bytes)
    client = await site.connect()
    client.post({**BODY, "prompt": "large"})
    await eventually(lambda: room.waiting)
    (worker,) = site.gateway.registry.workers
    worker.ranks[0].engine.sweep(asyncio.get_running_loop().time() + 1e6)
    assert room.waiting
    if leaves:
        client.close()
        await eventually(lambda: not room.waiting and not worker.ranks[0].engine.open_connections)
    else:
        room.release("somebody")
        assert len((await client.answer()).body) > LARGE
    assert not worker.suspect
    room.release("somebody")
    assert (await site.post(BODY)).status == 200
    await eventually(lambda: not room.total_bytes)


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_answer_of_untold_length_takes_room_too(make_site: MakeSite, chunked: bool) -> None:
    async def untold(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        coding = "transfer-encoding: chunked\r\n" if chunked else "connection: close\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{coding}\r\n".encode())
        piece = b"x" * 50_000
        for _ in range(int(seen.body["prompt"])):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        await writer.drain()
        if not chunked:
            writer.close()
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=untold))
    assert len((await site.post({**BODY, "prompt": "10"})).body) == 500_000
    assert (await site.post({**BODY, "prompt": "100"})).status == 502
    await eventually(lambda: not site.gateway.response_budget.total_bytes)
