"""The agent keeps its engine's LoRA adapters as they are wanted. The engine is checked in `test_two_engines`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from fulcrum.api.worker import AdaptersConfig, AdapterSource
from fulcrum_worker.adapters import AdapterKeeper


class Engine:
    """vLLM's three routes of adapters, with its answers."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.calls: list[str] = []
        self.refuses: dict[str, str] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/load_lora_adapter", self.load)
        app.router.add_post("/v1/unload_lora_adapter", self.unload)
        return app

    async def models(self, _: web.Request) -> web.Response:
        cards = [{"id": "chat", "root": "/model", "parent": None}]
        cards += [{"id": name, "root": path, "parent": "chat"} for name, path in self.loaded.items()]
        return web.json_response({"object": "list", "data": cards})

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"load {body['lora_name']}")
        if (why := self.refuses.get(body["lora_name"])) is not None:
            return web.json_response({"error": {"message": why, "code": 500}}, status=500)
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.calls.append(f"unload {name}")
        return web.Response(text="Success", status=404 if self.loaded.pop(name, None) is None else 200)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Engine()
        self.now = 0.0
        self.serves = True

    def adapter(self, name: str, *, rank: int = 8, said: int | None = None, made: bool = True) -> AdapterSource:
        folder = self.folder / name
        if made:
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
            (folder / "adapter_model.safetensors").write_bytes(b"")
        return AdapterSource(name=name, source=str(folder), rank=said)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def keeper(world: World) -> AsyncIterator[AdapterKeeper]:
    async with TestServer(world.engine.app()) as server, ClientSession() as session:
        yield AdapterKeeper(
            AdaptersConfig(max=2, max_rank=16, initial=(world.adapter("a"),)),
            session,
            str(server.make_url("/")).rstrip("/"),
            unload_after_seconds=30.0,
            serves=lambda: world.serves,
            clock=lambda: world.now,
        )


def states(keeper: AdapterKeeper) -> dict[str, str]:
    return {each.name: each.state for each in keeper.report()}


async def test_what_a_worker_begins_with_is_loaded_once(world: World, keeper: AdapterKeeper) -> None:
    assert states(keeper) == {"a": "loading"}
    await keeper.settle()
    await keeper.settle()
    assert (states(keeper), world.engine.calls) == ({"a": "loaded"}, ["load a"])


async def test_an_engine_that_lost_them_gets_them_again(world: World, keeper: AdapterKeeper) -> None:
    await keeper.settle()
    world.engine.loaded.clear()
    await keeper.settle()
    assert world.engine.calls == ["load a", "load a"]
    world.serves = False
    assert states(keeper) == {"a": "loading"}


async def test_one_that_is_not_wanted_stays_for_what_began_with_it(world: World, keeper: AdapterKeeper) -> None:
    await keeper.settle()
    keeper.want((world.adapter("b"),))
    await keeper.settle()
    assert states(keeper) == {"b": "loaded", "a": "leaving"}
    world.now = 29.0
    await keeper.settle()
    assert "unload a" not in world.engine.calls
    world.now = 31.0
    await keeper.settle()
    assert (states(keeper), world.engine.loaded.keys()) == ({"b": "loaded"}, {"b"})


async def test_one_that_comes_back_in_time_was_never_away(world: World, keeper: AdapterKeeper) -> None:
    await keeper.settle()
    keeper.want(())
    await keeper.settle()
    keeper.want((world.adapter("a"),))
    await keeper.settle()
    world.now = 100.0
    await keeper.settle()
    assert (states(keeper), world.engine.calls) == ({"a": "loaded"}, ["load a"])


async def test_other_weights_under_a_name_wait_for_the_end_of_the_first(world: World, keeper: AdapterKeeper) -> None:
    await keeper.settle()
    other = AdapterSource(name="a", source=world.adapter("a2").source)
    keeper.want((other,))
    await keeper.settle()
    assert states(keeper) == {"a": "loading"}
    world.now = 31.0
    await keeper.settle()
    assert states(keeper) == {"a": "loaded"}
    assert world.engine.loaded == {"a": other.source}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"made": False}, ("adapter_config.json is not there", "on every worker")),
        ({"rank": 64}, ("its rank is 64", "spec.adapters.maxRank (16)", "raise maxRank")),
        ({"rank": 8, "said": 4}, ("its rank is 8", "rank says 4")),
    ],
)
async def test_one_that_cannot_be_loaded_is_its_own_fault(
    world: World, keeper: AdapterKeeper, wrong: dict[str, Any], words: tuple[str, ...]
) -> None:
    keeper.want((world.adapter("bad", **wrong), world.adapter("a")))
    await keeper.settle()
    bad, good = keeper.report()
    assert (bad.state, bad.lasting, good.state) == ("failed", True, "loaded")
    assert all(word in bad.message for word in words), bad.message
    assert world.engine.calls == ["load a"], "the engine was not asked"


@pytest.mark.parametrize(
    ("program", "lasting", "words"),
    [
        ("import sys; sys.exit('no route to the hub')", False, "no route to the hub"),
        ("import sys; print('404 no such commit', file=sys.stderr); sys.exit(3)", True, "404 no such commit"),
    ],
)
async def test_the_hub_out_of_reach_may_come_back_and_a_wrong_id_stays(
    keeper: AdapterKeeper, monkeypatch: pytest.MonkeyPatch, program: str, lasting: bool, words: str
) -> None:
    monkeypatch.setattr("fulcrum_worker.adapter_files._DOWNLOAD", program)
    keeper.want((AdapterSource(name="sql", source="acme/sql"),))
    await keeper.settle()
    (found,) = keeper.report()
    assert (found.state, found.lasting) == ("failed", lasting)
    assert words in found.message
    assert "check source and revision" in found.message


async def test_one_that_failed_is_tried_again_later(world: World, keeper: AdapterKeeper) -> None:
    world.engine.refuses["a"] = "no such module"
    for now in (0.0, 1.0, 6.0, 7.0, 17.0):
        world.now = now
        await keeper.settle()
    assert world.engine.calls == ["load a"] * 3, "after 5 s, then 10"
    assert "no such module" in keeper.report()[0].message
    del world.engine.refuses["a"]
    world.now = 40.0
    await keeper.settle()
    assert states(keeper) == {"a": "loaded"}


async def test_an_engine_that_does_not_answer_is_asked_later(world: World) -> None:
    async with ClientSession() as session:
        config = AdaptersConfig(max=1, max_rank=16, initial=(world.adapter("a"),))
        keeper = AdapterKeeper(
            config, session, "http://127.0.0.1:1", unload_after_seconds=1.0, serves=lambda: True, clock=lambda: 0.0
        )
        await keeper.settle()
        assert states(keeper) == {"a": "loading"}
