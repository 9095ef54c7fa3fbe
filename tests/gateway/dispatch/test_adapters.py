"""LoRA adapters at the endpoint: which names are served, by which workers, and what is said of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import SERVED, Engine, MakeSite, Site, eventually
from tests.gateway.dispatch.test_tokenizing import tokenizes

from fulcrum.api.gateway import GatewayConfig, GatewayHold
from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionQueue
from fulcrum.api.worker import AdapterReport, AdapterSource
from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.api_formats.inference_request import COMPLETIONS_PATH
from fulcrum.gateway.dispatch.admit import AdmissionControl

SQL = AdapterSource(name="sql", source="/adapters/sql")
RUNNING: list[Agent] = []
LIST = {"config": {"adapters": True}}


@pytest.fixture(autouse=True)
async def stopped() -> AsyncIterator[None]:
    yield
    while RUNNING:
        await RUNNING.pop().stop()


def held(state: str = "loaded", source: str = "/adapters/sql", *, lasting: bool = False) -> bytes:
    made = AdapterReport(name="sql", source=source, state=state, lasting=lasting)
    return msgspec.json.encode(report(adapters=(made,)))


BROKEN = held("failed", lasting=True)
HOLD = {"hold": GatewayHold(max_requests=2, max_wait_seconds=600.0)}
QUEUE = {"admission": Admission(queue=AdmissionQueue(max_wait="600s", max_requests=2))}


async def site_of(
    make_site: MakeSite, config: dict[str, Any] | None = None, **bodies: bytes
) -> tuple[Site, dict[str, Agent]]:
    """A gateway over workers `p...` (prefill) and `d...` (decode) whose agents answer `bodies`."""
    agents = {name: await Agent(body).start() for name, body in bodies.items()}
    RUNNING.extend(agents.values())
    engines = [
        Engine(name, Role.PREFILL if name[0] == "p" else Role.DECODE, facts={"agent_port": agents[name].port})
        for name in bodies
    ]
    site = await make_site(*engines, config={**LIST["config"], **(config or {})})
    site.gateway.adapters.take([SQL])
    site.born |= site.counters()
    await site.gateway.poller.poll()
    return site, agents


async def test_both_legs_go_to_workers_that_hold_it(make_site: MakeSite) -> None:
    none = msgspec.json.encode(report())
    site, _ = await site_of(make_site, p0=none, p1=held(), d0=none, d1=held(), d2=held("loading"))
    for _ in range(4):
        answered = await site.post({"model": "sql", "prompt": "hello"})
        assert (answered.status, answered.headers["x-fulcrum-path"]) == (200, "p1,d1")
    assert [seen.body["model"] for name in ("p1", "d1") for seen in site.engines[name].seen] == ["sql"] * 8
    assert await site.metric('fulcrum_gateway_adapter_requests_total{adapter="sql",code="200"}') == 4
    assert (await site.post({"model": "m", "prompt": "hello"})).status == 200


async def test_an_unknown_name_is_404_and_one_that_is_loading_503(make_site: MakeSite) -> None:
    site, agents = await site_of(make_site, p0=held("loading"), d0=held("failed"))
    unknown = await site.post({"model": "poems", "prompt": "x"})
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")
    loading = await site.post({"model": "sql", "prompt": "x"})
    assert (loading.status, loading.json()["error"]["code"]) == (503, "model_loading")
    assert int(loading.headers["retry-after"]) > 0
    agents["p0"].body = agents["d0"].body = held()
    await site.gateway.poller.poll()
    assert (await site.post({"model": "sql", "prompt": "x"})).status == 200
    site.gateway.adapters.take([])
    assert (await site.post({"model": "sql", "prompt": "x"})).status == 404
    assert "adapter_requests_total{" not in await site.page(), "labels are of the list alone"


@pytest.mark.parametrize("config", [{}, HOLD, QUEUE], ids=["at once", "hold", "queue"])
async def test_one_that_no_worker_can_load_is_refused_at_once(make_site: MakeSite, config: dict[str, Any]) -> None:
    site, agents = await site_of(make_site, config, p0=BROKEN, d0=BROKEN)
    refused = await site.post({"model": "sql", "prompt": "x"})
    error = refused.json()["error"]
    assert (refused.status, error["code"], error["param"]) == (503, "adapter_not_loaded", "model")
    assert "status.adapters" in error["message"]
    assert (refused.headers.get("retry-after"), refused.headers["x-should-retry"]) == (None, "false")
    assert (await site.post({"model": "m", "prompt": "x"})).status == 200
    agents["d0"].body = held()
    await site.gateway.poller.poll()
    assert (await site.post({"model": "sql", "prompt": "x"})).headers["x-fulcrum-path"] == "d0"


@pytest.mark.parametrize("other", [held("loading"), held("failed"), msgspec.json.encode(report())])
async def test_while_one_worker_may_load_it_asking_again_helps(make_site: MakeSite, other: bytes) -> None:
    site, _ = await site_of(make_site, p0=BROKEN, d0=other)
    refused = await site.post({"model": "sql", "prompt": "x"})
    assert (refused.status, refused.json()["error"]["code"]) == (503, "model_loading")
    assert int(refused.headers["retry-after"]) > 0
    assert "x-should-retry" not in refused.headers


async def test_a_held_request_ends_once_no_worker_can_load_it(make_site: MakeSite) -> None:
    site, agents = await site_of(make_site, HOLD, p0=held("loading"), d0=held("loading"))
    asked = asyncio.create_task(site.post({"model": "sql", "prompt": "x"}))
    await eventually(lambda: site.gateway.hold.held == 1)
    agents["p0"].body = agents["d0"].body = BROKEN
    await site.gateway.poller.poll()
    assert (await asked).json()["error"]["code"] == "adapter_not_loaded"
    assert (site.gateway.hold.held, site.gateway.hold.outcomes["refused"]) == (0, 1)


async def test_what_other_weights_failed_with_is_no_fault_of_these(make_site: MakeSite) -> None:
    site, _ = await site_of(make_site, p0=BROKEN, d0=BROKEN)
    site.gateway.adapters.take([AdapterSource(name="sql", source="/adapters/sql-2")])
    assert (await site.post({"model": "sql", "prompt": "x"})).json()["error"]["code"] == "model_loading"


async def test_other_weights_under_the_name_are_not_it(make_site: MakeSite) -> None:
    site, _ = await site_of(make_site, p0=held(source="/adapters/sql-1"), d0=held())
    assert (await site.post({"model": "sql", "prompt": "x"})).headers["x-fulcrum-path"] == "d0"


async def test_before_the_list_is_read_nothing_is_denied(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED), **LIST)
    assert (await site.post({"model": "sql", "prompt": "x"})).status == 503
    assert "adapter_requests_total{" not in await site.page()
    plain = await make_site(Engine("n", Role.MIXED))
    plain.gateway.adapters.take([SQL])
    assert (await plain.post({"model": "sql", "prompt": "x"})).status == 404, "its engines take none"


async def test_models_are_listed_as_vllm_lists_them(make_site: MakeSite) -> None:
    site, _ = await site_of(make_site, p0=held(), d0=held())
    cards = (await site.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"], card["root"]) for card in cards] == [
        ("m", None, "org/m"),
        ("sql", "m", "/adapters/sql"),
    ]
    assert (await site.get("/v1/models/sql")).json()["parent"] == "m"
    assert (await site.get("/v1/models/poems")).status == 404


async def test_any_worker_tokenizes_for_an_adapter(make_site: MakeSite) -> None:
    site, _ = await site_of(make_site, p0=msgspec.json.encode(report()))
    site.engines["p0"].behave = tokenizes
    assert (await site.post({"model": "sql", "prompt": "x"}, "/tokenize")).status == 200
    assert site.engines["p0"].seen[0].body["model"] == "m"


async def test_a_new_worker_is_asked_at_once(make_site: MakeSite) -> None:
    site, _ = await site_of(make_site, p0=held(), d0=held())
    agent = await Agent(held()).start()
    RUNNING.append(agent)
    engine = Engine("d1", Role.DECODE, facts={"agent_port": agent.port})
    await engine.start()
    site.engines["d1"] = engine
    site.gateway.registry.put(engine.record())
    for worker in site.gateway.registry.workers:
        if worker.name == "d1":
            site.gateway.poller.joined(worker)
    await eventually(lambda: "sql" in site.gateway.registry.cluster.workers.by_name["d1"].adapters)


@pytest.mark.parametrize("field", [{}, {"cache_salt": "s"}])
def test_prefixes_of_adapters_are_their_own(field: dict[str, Any]) -> None:
    admission = AdmissionControl(GatewayConfig(cluster="c", served_name="m", model="m"), prefix_seed=1)
    served = msgspec.structs.replace(SERVED, adapters=frozenset(("sql", "tone")))
    found = []
    for model in ("m", "sql", "tone"):
        body = msgspec.json.encode({"model": model, "prompt": "x" * 5000, **field})
        incoming = admission.incoming(read_request(COMPLETIONS_PATH, body, served), 0, {})
        assert incoming.adapter == ("" if model == "m" else model)
        found.append(set(incoming.prefix))
    assert all(found)
    assert len(found[0] | found[1] | found[2]) == sum(map(len, found))
