"""A deadline counts the time in which the event loop could hear the answer, and ends all the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.machine import deadline_seconds, eventually

from fulcrum.telemetry.deadline import Within

DEADLINE_SECONDS = 0.05


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


async def ask(listener: socket.socket, meanwhile: Callable[[], None] = lambda: None) -> bytes:
    async with Within(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            writer.write(b"?")
            meanwhile()
            return await reader.readexactly(1)
        finally:
            writer.close()


async def test_an_answer_that_came_in_time_is_heard_by_a_loop_that_is_late(listener: socket.socket) -> None:
    answered = threading.Event()

    def answer() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.recv(1)
            connection.sendall(b"!")
            answered.set()
            connection.recv(1)

    def hold_the_loop_up() -> None:
        """Until the answer is there, and for longer than the deadline."""
        assert answered.wait(deadline_seconds(60))
        began = time.monotonic()
        while time.monotonic() - began < 2 * DEADLINE_SECONDS:
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert await ask(listener, hold_the_loop_up) == b"!"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(thread.join)


async def test_a_silence_ends(listener: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(deadline_seconds(60)):
            await ask(listener)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_call_that_is_cancelled_is_no_timeout(listener: socket.socket) -> None:
    asking = asyncio.create_task(ask(listener))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_context_in_which_all_goes_well_leaves_nothing_behind() -> None:
    async with Within(DEADLINE_SECONDS):
        pass
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 2 * DEADLINE_SECONDS)
