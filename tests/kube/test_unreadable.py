"""An object that cannot be read costs nothing but itself, in lists, in watches and in answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.conftest import Server, event, events, page, pod
from tests.machine import deadline_seconds

from fulcrum.kube import UNREADABLE, Api, Json, Resource
from fulcrum.kube.informer import Informer
from fulcrum.kube.reading import MAX_DEPTH, ObjectReader, Unreadable, elements, members

PODS = Resource(api_version="v1", kind="Pod", plural="pods")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


class _Shape(msgspec.Struct):
    metadata: dict[str, Any]
    spec: dict[str, int] | None = None
    unreadable: str | None = None


def nested(levels: int, *, inside: str = "spec") -> Json:
    """A Pod with so many levels in one field."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    found = pod("deep", 3)
    if inside == "spec":
        return {**found, "spec": value}
    return {**found, "metadata": {**found["metadata"], "managedFields": [value]}}


def text_of(levels: int, *, inside: str = "spec", array: bool = False) -> str:
    """The same as JSON text, at depths at which no encoder of Python goes along."""
    deep = ('[{"a":' * levels + "1" + "}]" * levels) if array else ('{"a":' * levels + "1" + "}" * levels)
    text = json.dumps(nested(1, inside=inside))
    return text.replace('{"a": 1}', deep)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.booleans())
def test_members_are_those_of_a_decoder(value: dict[str, Any], spaced: bool) -> None:
    text = json.dumps(value, indent=2 if spaced else None).encode()
    assert {name: json.loads(part) for name, part in members(text).items()} == value


@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=4))
def test_elements_are_those_of_a_decoder(value: list[Any]) -> None:
    assert [json.loads(part) for part in elements(json.dumps(value).encode())] == value


@pytest.mark.parametrize("inside", ["spec", "metadata"])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 990, 5_000, 10_000])
def test_what_is_nested_too_deep_is_a_stub(levels: int, inside: str) -> None:
    found = ObjectReader(dict[str, Any]).read(text_of(levels, inside=inside, array=levels > 5_000).encode())
    assert isinstance(found, Unreadable)
    assert found.stub["metadata"]["name"] == "deep"
    assert "deep" in found.stub[UNREADABLE]


def test_what_is_as_deep_as_allowed_is_read() -> None:
    assert not isinstance(ObjectReader(dict[str, Any]).read(json.dumps(nested(MAX_DEPTH - 2)).encode()), Unreadable)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"metadata": []}', b"\xff", b'{"a":' * 5_000])
def test_what_is_no_object_is_nothing(raw: bytes) -> None:
    assert ObjectReader(_Shape).read(raw) is None


class _Hostile:
    """Lists and watches with one object that cannot be read between two that can."""

    def __init__(self, hostile: str) -> None:
        self.hostile = hostile
        self.end = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            line = b'{"type":"ADDED","object":%s}\n' % self.hostile.replace('"deep"', '"later"').encode()
            return await events(request, line, event("ADDED", pod("after", 9)), hold=self.end)
        text = json.dumps(json.loads(page(5, pod("a", 1), pod("HERE", 2), pod("b", 4)).text or ""))
        return web.Response(
            text=text.replace(json.dumps(pod("HERE", 2)), self.hostile), content_type="application/json"
        )


@pytest.mark.parametrize(
    "hostile",
    [text_of(300), text_of(990), text_of(10_000), text_of(5_000, inside="metadata"), text_of(1).replace("1}", '"x"}')],
    ids=["300", "990", "10000", "managedFields", "type"],
)
async def test_the_others_are_read(server: Server, hostile: str) -> None:
    handler = _Hostile(hostile)
    server.handler = handler
    api = Api(server.kubeconfig)
    informer = Informer(api, PODS, shape=_Shape)
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(deadline_seconds(10)):
            while informer.get(("n", "after")) is None:  # noqa: ASYNC110 - polls what has no event
                await asyncio.sleep(0.005)
        names = {obj["metadata"]["name"]: obj.get(UNREADABLE) for obj in informer}
        assert {name for name, why in names.items() if why is None} == {"a", "b", "after"}
        assert {name for name, why in names.items() if why is not None} == {"deep", "later"}
    finally:
        handler.end.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def test_the_answer_of_a_write_is_a_stub(server: Server) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text_of(5_000), content_type="application/json")

    server.handler = answer
    api = Api(server.kubeconfig)
    found = await api.get("/api/v1/namespaces/n/pods/deep")
    assert found["metadata"]["uid"] == "u-deep"
    assert UNREADABLE in found
    await api.close()


async def test_a_defect_in_a_subscriber_does_not_end_an_informer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await events(request)
        return page(5, pod("a", 1))

    monkeypatch.setattr("fulcrum.kube.informer._ANEW_SECONDS", 0.01)
    server.handler = answer
    api = Api(server.kubeconfig)
    informer = Informer(api, PODS)
    calls: list[str] = []

    def fail_once(_: Json | None, new: Json | None) -> None:
        calls.append((new or {})["metadata"]["name"])
        if len(calls) == 1:
            raise RuntimeError("a defect")

    informer.subscribe(fail_once)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), deadline_seconds(10))
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await api.close()
