"""A front between clients and the gateways of clusters: canary, conversations, fallback, keys, limits, removal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway.conftest import Answered, Client, Engine, Seen, eventually

from fulcrum.api.front import FrontBackend, FrontCluster, FrontConfig, FrontRoute, FrontRoutes
from fulcrum.api.names import Role
from fulcrum.gateway.front.app import Front
from fulcrum.gateway.front.settings import FrontSettings

CHAT = "/v1/chat/completions"


class FrontSite:
    """A front and the gateways of its clusters, played by servers that answer like them."""

    def __init__(self, front: Front, clusters: dict[str, Engine]) -> None:
        self.front = front
        self.clusters = clusters
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.front.port))
        self.clients.append(client)
        return client

    async def chat(self, *said: str, model: str | None = "chat", headers: str = "", **fields: Any) -> Answered:
        """One request of a conversation: what the user and the model have said in turn."""
        client = await self.connect()
        client.post(body(*said, model=model, **fields), CHAT, headers)
        return await client.answer()

    async def get(self, path: str, headers: str = "") -> Answered:
        client = await self.connect()
        client.send(f"GET {path} HTTP/1.1\r\nHost: g\r\n{headers}\r\n".encode())
        return await client.answer()

    def known(self, *names: str, **fields: Any) -> tuple[FrontCluster, ...]:
        return tuple(
            FrontCluster(name=f"ns/{name}", host="127.0.0.1", port=self.clusters[name].port, served_name=name, **fields)
            for name in names
        )


def body(*said: str, model: str | None = "chat", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said or ("Hi",))]
    return {"messages": messages, **({} if model is None else {"model": model}), **fields}


def route(
    name: str = "chat", fallback: tuple[str, ...] = (), /, *, weights: dict[str, int], **fields: Any
) -> FrontRoute:
    backends = tuple(FrontBackend(cluster=f"ns/{each}", weight=weight) for each, weight in weights.items())
    return FrontRoute(name=name, backends=backends, fallback=tuple(f"ns/{each}" for each in fallback), **fields)


async def turns_away(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    answer = json.dumps({"error": {"message": f"{cluster.name} is full"}}).encode()
    wait = {"a": 9, "b": 2}.get(cluster.name, 5)
    writer.write(
        b"HTTP/1.1 429 X\r\nretry-after: %d\r\nx-fulcrum-rejected: TtftUnreachable\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (wait, len(answer), answer)
    )
    await writer.drain()
    return True


MakeFront = Callable[..., Any]


@pytest.fixture
async def make_front() -> AsyncIterator[MakeFront]:
    made: list[FrontSite] = []

    async def make(*names: str, routes: list[FrontRoute], replicas: int = 1, **fields: Any) -> FrontSite:
        clusters = {name: Engine(name, Role.MIXED) for name in names}
        for cluster in clusters.values():
            await cluster.start()
        config = FrontConfig(name="front", shutdown_grace_seconds=5.0, routes=FrontRoutes())
        settings = FrontSettings(config=config, host="127.0.0.1", port=0, inside_port=0, lame_duck_seconds=0.0)
        site = FrontSite(Front(settings, asyncio.get_running_loop()), clusters)
        made.append(site)
        await site.front.start()
        site.front.change(FrontRoutes(models=tuple(routes), clusters=site.known(*names, **fields), replicas=replicas))
        return site

    yield make
    for site in made:
        for client in site.clients:
            client.close()
        with contextlib.suppress(asyncio.CancelledError):
            await site.front.stop()
        for cluster in site.clusters.values():
            await cluster.stop()


async def test_a_request_is_passed_on_and_its_answer_back(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})], headers=("x-customer-tier",))
    answer = await site.chat(
        "Hi", headers="X-Customer-Tier: premium\r\nCookie: secret\r\nX-Request-Id: mine\r\n", seed=7
    )
    assert answer.status == 200
    assert answer.json()["choices"][0]["text"].startswith("a ")
    assert answer.headers["x-fulcrum-cluster"] == "ns/a"
    assert answer.headers["x-request-id"] == "mine"
    (seen,) = site.clusters["a"].seen
    assert seen.path == CHAT
    assert seen.body == body("Hi", model="a", seed=7)
    assert seen.headers["x-customer-tier"] == "premium"
    assert seen.headers["x-request-id"] == "mine"
    assert "cookie" not in seen.headers


async def test_a_stream_is_passed_on_as_it_comes(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])
    answer = await site.chat("Hi", stream=True)
    assert answer.complete
    assert answer.headers["x-fulcrum-cluster"] == "ns/a"
    assert answer.body.count(b"data: ") == 4
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_canary_of_ten_percent_over_a_thousand_requests(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route(weights={"a": 90, "b": 10})])
    client = await site.connect()
    for number in range(1000):
        client.post(body(f"Question {number}"), CHAT)
        assert (await client.answer()).status == 200
    assert abs(len(site.clusters["b"].seen) - 100) <= 2


async def test_a_conversation_stays_on_its_side(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route(weights={"a": 50, "b": 50})])
    for number in range(20):
        said = [f"Question {number}"]
        sides = set()
        for turn in range(4):
            sides.add((await site.chat(*said)).headers["x-fulcrum-cluster"])
            said += [f"Answer {number} {turn}", f"And {turn}?"]
        assert len(sides) == 1
    assert all(cluster.seen for cluster in site.clusters.values())


async def test_a_named_conversation_stays_whatever_it_says(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route(weights={"a": 50, "b": 50})])
    name = "X-Fulcrum-Conversation: session-7\r\n"
    sides = {(await site.chat(f"{number}", headers=name)).headers["x-fulcrum-cluster"] for number in range(10)}
    assert len(sides) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_another_cluster_serves_what_the_first_turns_away(make_front: MakeFront, stream: bool) -> None:
    site = await make_front("a", "b", routes=[route("chat", ("b",), weights={"a": 1})])
    site.clusters["a"].behave = turns_away
    answers = await asyncio.gather(*(site.chat(str(number), stream=stream) for number in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["x-fulcrum-cluster"] for answer in answers} == {"ns/b"}
    assert len(site.clusters["a"].seen) == 20
    assert site.front.metrics.fallbacks == Counter({("chat", "ns/a", "429"): 20})


async def test_when_all_turn_it_away_the_client_hears_who_can_serve_it_soonest(make_front: MakeFront) -> None:
    site = await make_front("a", "b", "c", routes=[route("chat", ("b", "c"), weights={"a": 1})])
    for cluster in site.clusters.values():
        cluster.behave = turns_away
    answer = await site.chat()
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert answer.headers["x-fulcrum-rejected"] == "TtftUnreachable"
    assert answer.json()["error"]["message"] == "b is full"


async def test_a_cluster_that_is_away_is_stood_in_for(make_front: MakeFront) -> None:
    site = await make_front(
        "a", "b", routes=[route("chat", ("b",), weights={"a": 1}), route("alone", weights={"a": 1})]
    )
    await site.clusters["a"].stop()
    assert (await site.chat()).headers["x-fulcrum-cluster"] == "ns/b"
    away = await site.chat(model="alone")
    assert away.status == 503
    assert "retry-after" in away.headers


async def test_an_error_of_the_client_is_not_tried_elsewhere(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route("chat", ("b",), weights={"a": 1})])

    async def refuses(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await cluster.send(writer, 400, {"error": {"message": "no"}})
        return True

    site.clusters["a"].behave = refuses
    assert (await site.chat()).status == 400
    assert not site.clusters["b"].seen


async def test_a_stream_that_breaks_off_ends_with_one_error_event(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route("chat", ("b",), weights={"a": 1})])
    tells = asyncio.Event()

    async def breaks(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await cluster.head(writer)
        await cluster.event(writer, '{"choices":[]}')
        if tells.is_set():
            await cluster.event(writer, '{"error":{"message":"told"}}')
        writer.close()
        return True

    site.clusters["a"].behave = breaks
    for _ in range(2):
        answer = await site.chat("Hi", stream=True)
        assert not answer.complete
        assert answer.body.count(b'"error"') == 1
        tells.set()
    assert not site.clusters["b"].seen


async def test_a_model_that_is_removed_under_load_loses_nothing_that_was_begun(make_front: MakeFront) -> None:
    site = await make_front("a", "b", routes=[route(weights={"a": 1}), route("other", weights={"b": 1})])
    go_on = asyncio.Event()

    async def slow(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if not seen.body.get("stream"):
            await go_on.wait()
            return False
        await cluster.head(writer)
        await cluster.event(writer, "{}")
        await go_on.wait()
        await cluster.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    site.clusters["a"].behave = slow
    begun = [asyncio.ensure_future(site.chat(str(number), stream=number % 2 == 0)) for number in range(40)]
    await eventually(lambda: len(site.clusters["a"].seen) == 40)
    site.front.change(FrontRoutes(models=(route("other", weights={"b": 1}),), clusters=site.known("b")))
    refused = await site.chat("new")
    go_on.set()
    answers = await asyncio.gather(*begun)
    assert {(answer.status, answer.complete) for answer in answers} == {(200, True)}
    assert refused.status == 404
    assert (await site.chat(model="other")).status == 200


async def test_models_and_aliases_are_listed_and_lead_to_one_model(make_front: MakeFront) -> None:
    site = await make_front(
        "a", "b", routes=[route(weights={"a": 1}, aliases=("gpt-4o",)), route("org/small", weights={"b": 1})]
    )
    cards = (await site.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [
        ("chat", "chat"), ("gpt-4o", "chat"), ("org/small", "org/small"),
    ]  # fmt: skip
    assert (await site.get("/v1/models/org/small")).json()["id"] == "org/small"
    assert (await site.get("/v1/models/none")).status == 404
    assert (await site.chat(model="gpt-4o")).headers["x-fulcrum-cluster"] == "ns/a"
    assert site.clusters["a"].seen[-1].body["model"] == "a"
    missing = await site.chat(model="none")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")
    nameless = await site.chat(model=None)
    assert nameless.status == 400
    assert "chat, org/small" in nameless.json()["error"]["message"]


async def test_without_a_name_the_only_model_is_asked(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])
    assert (await site.chat(model=None)).status == 200
    assert site.clusters["a"].seen[0].body["model"] == "a"


async def test_an_adapter_is_asked_for_in_place_of_the_served_name(make_front: MakeFront) -> None:
    adapter = route("tuned", ("b",), weights={"a": 1}, adapter="sql", aliases=("sql",))
    site = await make_front("a", "b", routes=[adapter, route(weights={"a": 1})])
    for name in ("tuned", "sql"):
        assert (await site.chat(model=name)).status == 200
    site.clusters["a"].behave = turns_away
    assert (await site.chat(model="tuned")).headers["x-fulcrum-cluster"] == "ns/b"
    site.clusters["a"].behave = None
    assert (await site.chat(model="chat")).status == 200
    assert [seen.body["model"] for seen in site.clusters["a"].seen] == ["sql", "sql", "sql", "a"]
    assert [seen.body["model"] for seen in site.clusters["b"].seen] == ["sql"]
    site.front.change(
        FrontRoutes(models=(route("tuned", weights={"a": 1}, adapter="sql-2"),), clusters=site.known("a"))
    )
    assert (await site.chat(model="tuned")).status == 200
    assert site.clusters["a"].seen[-1].body["model"] == "sql-2"


async def test_keys_of_a_model_and_where_they_are_passed_on(make_front: MakeFront, tmp_path: Path) -> None:
    (tmp_path / "team").write_text("key-of-a-team")
    guarded = route("guarded", weights={"a": 1}, api_keys_directory=str(tmp_path))
    site = await make_front("a", "b", routes=[guarded, route("open", weights={"a": 1})], takes_keys=False)
    key = "Authorization: Bearer key-of-a-team\r\n"
    assert (await site.chat(model="guarded")).status == 401
    assert (await site.chat(model="guarded", headers=key)).status == 200
    assert "authorization" not in site.clusters["a"].seen[-1].headers  # of another namespace
    assert (await site.chat(model="guarded", headers="X-Api-Key: key-of-a-team\r\n")).status == 200
    assert (await site.chat(model="open", headers="Authorization: Bearer for-the-cluster\r\n")).status == 200
    assert site.clusters["a"].seen[-1].headers["authorization"] == "Bearer for-the-cluster"
    site.front.change(FrontRoutes(models=(guarded,), clusters=site.known("a", takes_keys=True)))
    assert (await site.chat(model="guarded", headers=key)).status == 200
    assert site.clusters["a"].seen[-1].headers["authorization"] == "Bearer key-of-a-team"
    assert [card["id"] for card in (await site.get("/v1/models")).json()["data"]] == []
    assert [card["id"] for card in (await site.get("/v1/models", key)).json()["data"]] == ["guarded"]


async def test_a_limit_of_a_model_is_shared_by_the_fronts(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1}, requests_per_minute=4)], replicas=2)
    answers = [await site.chat() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].headers["x-fulcrum-rejected"] == "RateLimited"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30
    # A change of another thing must not fill it up again.
    site.front.change(
        FrontRoutes(models=(route(weights={"a": 2}, requests_per_minute=4),), clusters=site.known("a"), replicas=2)
    )
    assert (await site.chat()).status == 429


async def test_tokens_are_counted_as_the_answer_says(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1}, tokens_per_minute=100)])
    statuses = [(await site.chat("x" * 100)).status for _ in range(12)]
    assert statuses.index(429) == 6  # 10 tokens each, and the body of the next one is taken for 43


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": 1}', 400),
        (b'{"model": "\xff"}', 400),
        (b'{"model": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
    ],
)
async def test_what_cannot_be_read_is_refused(make_front: MakeFront, raw: bytes, status: int) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])
    client = await site.connect()
    client.post(raw, CHAT)
    assert (await client.answer()).status == status
    assert not site.clusters["a"].seen


async def test_other_paths_are_not_passed_on(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])
    assert (await site.get("/health")).status == 200
    assert (await site.get("/ready")).status == 200
    assert (await site.get("/metrics")).status == 404
    assert (await site.get(CHAT)).status == 405
    client = await site.connect()
    client.post({"model": "chat"}, "/v1/chat/completions%0d%0ax")
    assert (await client.answer()).status == 404
    assert not site.clusters["a"].seen


async def test_a_client_that_leaves_ends_the_work_of_its_request(make_front: MakeFront) -> None:
    site = await make_front("a", routes=[route(weights={"a": 1})])
    cluster = site.clusters["a"]

    async def waits(cluster: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.Event().wait()
        return True

    cluster.behave = waits
    client = await site.connect()
    client.post(body("Hi"), CHAT)
    await eventually(lambda: len(cluster.seen) == 1)
    client.close()
    await eventually(lambda: cluster.gone == 1)


async def test_metrics_are_prometheus_text(make_front: MakeFront) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    site = await make_front("a", routes=[route('odd"name', weights={"a": 1})])
    await site.chat(model='odd"name')
    families = {each.name: each for each in text_string_to_metric_families(site.front.metrics.render().decode())}
    (sample,) = families["fulcrum_front_requests"].samples
    assert (sample.labels["model"], sample.labels["cluster"], sample.value) == ('odd"name', "ns/a", 1.0)
    assert families["fulcrum_front_request_duration_seconds"].samples[-1].labels["fulcrum_front"] == "front"


def test_the_contract_survives_the_wire() -> None:
    routes = FrontRoutes(
        models=(route(weights={"a": 1}, aliases=("x",)),),
        clusters=(FrontCluster(name="ns/a", host="10.0.0.1", port=8080, served_name="a"),),
    )
    assert msgspec.json.decode(msgspec.json.encode(routes), type=FrontRoutes) == routes
