"""One cluster of three hangs, breaks or answers garbage: its clients wait for a bounded time, the others not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.gateway.conftest import Engine, Seen, eventually
from tests.gateway.front.test_front import CHAT, FrontSite, MakeFront, body, make_front, route

from fulcrum.api.front import FrontCluster, FrontRoutes

__all__ = ["make_front"]

MESSAGES = "/v1/messages"


@pytest.fixture
async def hanging() -> AsyncIterator[int]:
    """The port of a server that takes connections and requests, and says nothing."""
    over = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    over.set()
    server.close()


def with_hanging(site: FrontSite, port: int) -> None:
    """Models `alone` and `chat` begin at a cluster that hangs, the second one with another to stand in for it."""
    hangs = FrontCluster(name="ns/hangs", host="127.0.0.1", port=port, served_name="hangs")
    models = (
        route("alone", weights={"hangs": 1}),
        route("chat", ("a",), weights={"hangs": 1}),
        route("other", weights={"b": 1}),
    )
    site.front.change(FrontRoutes(models=models, clusters=(*site.known("a", "b"), hangs)))


async def test_the_others_go_on_while_one_cluster_hangs(
    make_front: MakeFront, hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.front.forward.SILENT_SECONDS", 0.5)
    site = await make_front("a", "b", routes=[])
    with_hanging(site, hanging)
    waiting = [asyncio.ensure_future(site.chat(str(number), model="alone")) for number in range(20)]
    served = [(await site.chat(str(number), model="other")).status for number in range(50)]
    assert set(served) == {200}
    stood_in = await site.chat(model="chat")
    assert (stood_in.status, stood_in.headers["x-fulcrum-cluster"]) == (200, "ns/a")
    assert {answer.status for answer in await asyncio.gather(*waiting)} == {502}
    # From now on it is not waited for.
    refused = await site.chat(model="alone")
    assert refused.status == 503
    assert "retry-after" in refused.headers
    assert site.front.metrics.fallbacks["alone", "ns/hangs", "silent"] == 1


async def test_a_slow_cluster_that_answers_its_heartbeat_is_waited_for(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.front.forward.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("fulcrum.gateway.front.heartbeat._EVERY_SECONDS", 0.05)
    site = await make_front("a", routes=[route(weights={"a": 1})])
    go_on = asyncio.Event()

    async def slow(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.path == CHAT:
            await go_on.wait()
        return False

    site.clusters["a"].behave = slow
    begun = asyncio.get_running_loop().time()
    asked = asyncio.ensure_future(site.chat())
    await eventually(lambda: asyncio.get_running_loop().time() - begun > 3.0)
    assert not asked.done()
    go_on.set()
    assert (await asked).status == 200


@pytest.mark.parametrize("said", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"])
async def test_garbage_of_one_cluster_is_not_passed_on(make_front: MakeFront, said: bytes) -> None:
    site = await make_front(
        "a", "b", routes=[route("chat", ("b",), weights={"a": 1}), route("alone", weights={"a": 1})]
    )

    async def babbles(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(said)
        return True

    site.clusters["a"].behave = babbles
    assert (await site.chat()).headers["x-fulcrum-cluster"] == "ns/b"
    assert (await site.chat(model="alone")).status == 502


async def test_a_gateway_that_dies_before_its_answer_costs_no_request(make_front: MakeFront) -> None:
    """The cluster's address leads to several gateways, so that it is asked once more."""
    site = await make_front("a", routes=[route(weights={"a": 1})])
    seen_once: set[str] = set()

    async def dies(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.headers["x-request-id"] in seen_once:
            return False
        seen_once.add(seen.headers["x-request-id"])
        writer.transport.abort()
        return True

    site.clusters["a"].behave = dies
    answers = await asyncio.gather(*(site.chat(str(number), stream=number % 2 == 0) for number in range(20)))
    assert {answer.status for answer in answers} == {200}


async def test_errors_are_those_of_the_api_that_was_asked(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1}, api_keys_directory="/nonexistent")])
    client = await site.connect()
    client.post(body("Hi"), MESSAGES, "X-Api-Key: wrong-key\r\n")
    answer = await client.answer()
    assert (answer.status, answer.json()["type"], answer.json()["error"]["type"]) == (
        401, "error", "authentication_error",
    )  # fmt: skip
    client.post(body("Hi", model="none"), "/v1/messages/count_tokens")
    assert (await client.answer()).json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES, "/v1/messages/count_tokens", "/tokenize",
     "/detokenize"],
)  # fmt: skip
async def test_every_route_of_a_gateway_is_passed_on_with_its_headers(make_front: MakeFront, path: str) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])

    async def answers(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await cluster.send(writer, 200, {"path": seen.path})
        return True

    site.clusters["a"].behave = answers
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    client = await site.connect()
    client.post(
        {"model": "chat", "messages": []},
        path,
        f"X-Api-Key: a-key\r\nTraceparent: {trace}\r\nTracestate: v=1\r\nAnthropic-Version: 2023-06-01\r\n",
    )
    answer = await client.answer()
    assert (answer.status, answer.json()) == (200, {"path": path})
    (seen,) = site.clusters["a"].seen
    assert seen.body["model"] == "a"
    assert {name: seen.headers[name] for name in ("x-api-key", "traceparent", "tracestate", "anthropic-version")} == {
        "x-api-key": "a-key", "traceparent": trace, "tracestate": "v=1", "anthropic-version": "2023-06-01",
    }  # fmt: skip


async def test_an_error_event_of_anthropics_api_is_passed_on_once(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])

    async def breaks(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await cluster.head(writer)
        text = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n'
        writer.write(b"%x\r\n%b\r\n" % (len(text), text))
        await writer.drain()
        writer.close()
        return True

    site.clusters["a"].behave = breaks
    client = await site.connect()
    client.post(body("Hi", stream=True), MESSAGES)
    answer = await client.answer()
    assert answer.body.count(b"event: error") == 1
    assert not answer.complete
