"""Who is let in, who is turned away and how, and by which rules a path is found."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.gateway.agents import SLOW, Agent, report
from tests.gateway.conftest import SERVED, Engine, MakeSite, Seen, Site, eventually

from fulcrum.admission import Admit
from fulcrum.api.gateway import GatewayConfig, GatewayPool
from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import Admission, AdmissionPolicy, ClassKind, ClassMatch, QosClass
from fulcrum.api.worker import OffloadReport
from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, COMPLETIONS_PATH
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.errors import RequestError, never_fits, rejected
from fulcrum.kv import tiers_of

BODY = {"model": "m", "prompt": list(range(100)), "max_tokens": 100}
CLASSES = (
    QosClass(name="gold", priority=9, reserved=0.1, match=ClassMatch(header="X-Tier", value="gold")),
    QosClass(name="rest", priority=1),
)
PREDICTIVE = Admission(policy=AdmissionPolicy.PREDICTIVE)
THRESHOLD = Admission(policy=AdmissionPolicy.THRESHOLD)
WITH_BATCH = Admission(
    policy=AdmissionPolicy.PREDICTIVE,
    classes=(
        QosClass(name="rest", priority=1),
        QosClass(name="spare", priority=0, kind=ClassKind.BATCH, match=ClassMatch(header="X-Tier", value="spare")),
    ),
)
BOTH_CLASSES = Admission(policy=AdmissionPolicy.PREDICTIVE, classes=CLASSES)

VERY_SLOW = msgspec.structs.replace(SLOW, prefill_b=10 * SLOW.prefill_b)

MakeAgent = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def make_agent() -> AsyncIterator[MakeAgent]:
    agents: list[Agent] = []

    async def make(load: Any = None, **changes: Any) -> Agent:
        agents.append(await Agent(report(**changes) if load is None else load).start())
        return agents[-1]

    yield make
    for agent in agents:
        await agent.stop()


async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(60)
    return True


async def slow_worker(make_site: MakeSite, make_agent: MakeAgent, admission: Admission, **more: Any) -> Site:
    """One worker that never answers, with a known speed: ten seconds of prefill for each request.

    A test is over long before one of them has passed, also on a machine that is busy with other things.
    """
    agent = await make_agent(**{"speed": VERY_SLOW, **more.pop("load", {})})
    behave = more.pop("behave", hang)
    engine = Engine("m", Role.MIXED, behave=behave, facts={"pool": "x", "agent_port": agent.port})
    site = await make_site(engine, slo_seconds=(25.0, 0.5), config={"admission": admission, **more})
    await eventually(lambda: site.gateway.registry.workers[0].ranks[0].state.engine.known)
    return site


async def queue(site: Site, count: int, headers: str = "") -> None:
    """Send requests that stay in the queue; what is sent afterwards comes at a later reading of the clock.

    An engine takes what comes at the same one in one step.
    """
    before = len(site.engines["m"].seen)
    for _ in range(count):
        (await site.connect()).post(BODY, headers=headers)
    await eventually(lambda: len(site.engines["m"].seen) == before + count)
    clock = asyncio.get_running_loop().time
    now = clock()
    await eventually(lambda: clock() > now)


@pytest.mark.parametrize(
    ("headers", "ttft", "tpot"),
    [
        ({}, math.inf, math.inf),
        ({"x-llm-d-slo-ttft-ms": "200"}, 0.2, math.inf),
        ({"x-llm-d-slo-tpot-ms": "12.5"}, math.inf, 0.0125),
        ({"x-llm-d-slo-ttft-ms": "5000", "x-llm-d-slo-tpot-ms": "700"}, math.inf, math.inf),
    ],
)
def test_headers_tighten_the_promise_and_never_loosen_it(headers: dict[str, str], ttft: float, tpot: float) -> None:
    admission = AdmissionControl(
        GatewayConfig(cluster="c", served_name="m", model="m", slo_ttft_seconds=2, slo_tpot_seconds=0.1)
    )
    request = read_request(COMPLETIONS_PATH, json.dumps(BODY).encode(), SERVED)
    incoming = admission.incoming(request, 0, headers)
    assert (incoming.ttft_seconds, incoming.tpot_seconds) == (ttft, tpot)


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "inf", "1, 2"])
def test_a_promise_that_is_no_time_is_refused(text: str) -> None:
    admission = AdmissionControl(GatewayConfig(cluster="c", served_name="m", model="m"))
    request = read_request(COMPLETIONS_PATH, json.dumps(BODY).encode(), SERVED)
    with pytest.raises(RequestError, match="milliseconds"):
        admission.incoming(request, 0, {"x-llm-d-slo-ttft-ms": text})


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (COMPLETIONS_PATH, {"prompt": "x"}, 16),
        (COMPLETIONS_PATH, {"prompt": "x", "max_tokens": None}, 16),
        (COMPLETIONS_PATH, {"prompt": "x", "max_tokens": 7}, 7),
        (CHAT_PATH, {"messages": [{}]}, None),
        (CHAT_PATH, {"messages": [{}], "max_tokens": 7}, 7),
        (COMPLETIONS_PATH, {"prompt": "x", "max_tokens": 7, "max_completion_tokens": 5}, 7),
        (CHAT_PATH, {"messages": [{}], "max_tokens": 7, "max_completion_tokens": 5}, 5),
        (CHAT_PATH, {"messages": [{}], "max_completion_tokens": 5, "max_tokens": 7}, 5),
    ],
)
def test_how_much_a_request_may_make(path: str, body: dict[str, Any], expected: int | None) -> None:
    assert read_request(path, json.dumps(body).encode(), SERVED).max_tokens == expected


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [
        (0.05, b"retry-after: 1\r\nretry-after-ms: 50\r\n"),
        (1.0, b"retry-after: 1\r\n"),
        (2.2, b"retry-after: 3\r\nretry-after-ms: 2200\r\n"),
        (None, b""),
    ],
)
def test_when_to_retry_is_never_said_too_early(seconds: float | None, lines: bytes) -> None:
    error = rejected(Reason.KV_EXHAUSTED, seconds)
    assert error.headers() == lines + b"x-fulcrum-rejected: KvExhausted\r\n"
    assert error.status == 429


def test_what_never_fits_is_the_clients_own_fault() -> None:
    error = never_fits()
    assert (error.status, error.code) == (400, "never_fits")
    assert error.headers() == b"x-fulcrum-rejected: NeverFits\r\n"


@pytest.mark.parametrize("field", ["cache_salt", "tools", "chat_template"])
def test_equal_prompts_may_have_different_prefixes(field: str) -> None:
    admission = AdmissionControl(GatewayConfig(cluster="c", served_name="m", model="m"))

    def keys(**more: Any) -> tuple[int, ...]:
        body = {"messages": [{"role": "user", "content": "x" * 2000}], **more}
        return admission.incoming(read_request(CHAT_PATH, json.dumps(body).encode(), SERVED), 0, {}).prefix

    assert len(keys()) == len(keys(**{field: "a"})) > 0
    assert keys(**{field: "a"}) == keys(**{field: "a"})
    assert len({keys(), keys(**{field: "a"}), keys(**{field: "b"})}) == 3


async def test_overload_is_turned_away_as_quickly_as_a_bad_request_and_says_when_to_come_back(
    make_site: MakeSite, make_agent: MakeAgent
) -> None:
    site = await slow_worker(make_site, make_agent, PREDICTIVE)
    await queue(site, 2)
    seconds: dict[int, list[float]] = {400: [], 429: []}
    for number in range(20):
        client = await site.connect()
        began = time.monotonic()
        client.post(BODY if number % 2 else {**BODY, "max_tokens": -1})
        answer = await client.answer()
        seconds[answer.status].append(time.monotonic() - began)
    assert len(seconds[400]) == len(seconds[429]) == 10
    assert min(seconds[429]) < 10 * min(seconds[400])
    assert answer.headers["x-fulcrum-rejected"] == "TtftUnreachable"
    # 20 s are queued before it, and about 10 s of the 25 s are left to wait, after its own prefill and a margin.
    assert 5 <= int(answer.headers["retry-after"]) <= 20
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "ttft_unreachable")
    assert len(site.engines["m"].seen) == 2
    assert await site.metric('fulcrum_gateway_rejected_total{class="default",reason="TtftUnreachable"}') == 10
    assert await site.metric("fulcrum_gateway_rejected_prompt_tokens_total") == 1000
    assert await site.metric('fulcrum_gateway_slo_total{class="default",outcome="rejected"}') == 10
    assert await site.metric('fulcrum_gateway_requests_total{code="429",reason="TtftUnreachable"}') == 10
    assert await site.metric("fulcrum_gateway_unpredicted_total") == 0


def save_up(site: Site) -> None:
    """Let in long prompts elsewhere: a part of their time is there for those that have to wait."""
    admission = site.gateway.admission
    elsewhere = admission.core.new_view()
    elsewhere.workers.set_speed("x", site.gateway.registry.workers[0].ranks[0].state.engine.speed)
    elsewhere.workers.put("idle", Role.MIXED, pool="x")
    for _ in range(100):
        incoming = admission.core.incoming(prompt_tokens=2000, max_tokens=1)
        assert isinstance(admission.core.decide(incoming, elsewhere, 0.0), Admit)


async def test_off_turns_nobody_away(make_site: MakeSite, make_agent: MakeAgent) -> None:
    site = await slow_worker(make_site, make_agent, Admission(policy=AdmissionPolicy.OFF))
    await queue(site, 10)
    assert await site.metric("fulcrum_gateway_rejected_total") == 0


async def test_threshold_needs_no_prediction(make_site: MakeSite, make_agent: MakeAgent) -> None:
    site = await slow_worker(make_site, make_agent, THRESHOLD, load={"max_batch": 2})
    await queue(site, 2)
    answer = await site.post(BODY)
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (429, "QueueFull")


@pytest.mark.parametrize("body", [b"{", json.dumps({"role": "mixed"}).encode()])
async def test_while_a_speed_is_unknown_everyone_is_let_in(
    make_site: MakeSite, make_agent: MakeAgent, body: bytes
) -> None:
    agent = await make_agent(body)
    engine = Engine("m", Role.MIXED, behave=hang, facts={"agent_port": agent.port})
    site = await make_site(engine, slo_seconds=(0.1, 0.01), config={"admission": PREDICTIVE})
    await eventually(lambda: site.gateway.metrics.load_reports["unreadable"] > 0)
    await queue(site, 20)
    assert await site.metric('fulcrum_gateway_unpredicted_total{class="default"}') == 20
    assert await site.metric("fulcrum_gateway_workers_speed_known") == 0


async def test_an_agent_that_does_not_answer_is_asked_again(make_site: MakeSite, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await agent.stop()
    engine = Engine("m", Role.MIXED, facts={"agent_port": agent.port})
    site = await make_site(engine)
    await eventually(lambda: site.gateway.metrics.load_reports["unanswered"] > 0)
    assert (await site.post(BODY)).status == 200
    await agent.start()
    await eventually(lambda: site.gateway.registry.workers[0].ranks[0].state.engine.known)
    assert agent.asked[0].startswith(b"GET /load HTTP/1.1\r\nhost: 127.0.0.1")
    assert await site.metric("fulcrum_gateway_workers_speed_known") == 1


async def test_work_of_other_gateways_counts(make_site: MakeSite, make_agent: MakeAgent) -> None:
    load = {"running": 1, "waiting": 9, "queued_prompt_tokens": 900}
    site = await slow_worker(make_site, make_agent, PREDICTIVE, load=load, replicas=2)
    await eventually(lambda: all(worker.ranks[0].state.foreign for worker in site.gateway.registry.workers))
    answer = await site.post(BODY)
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 70


async def test_a_tighter_promise_is_kept_or_refused(make_site: MakeSite, make_agent: MakeAgent) -> None:
    site = await slow_worker(make_site, make_agent, PREDICTIVE)
    await queue(site, 1)
    strict = await site.post({**BODY, "prompt": [1, 2]}, headers="X-LLM-D-SLO-TTFT-MS: 500\r\n")
    assert (strict.status, strict.headers["x-fulcrum-rejected"]) == (429, "TtftUnreachable")
    (await site.connect()).post({**BODY, "prompt": [1, 2]})
    await eventually(lambda: len(site.engines["m"].seen) == 2)


async def test_a_higher_class_takes_the_place_of_a_queued_lower_one(make_site: MakeSite, make_agent: MakeAgent) -> None:
    site = await slow_worker(make_site, make_agent, BOTH_CLASSES)
    await queue(site, 1)
    second = await site.connect()
    second.post(BODY)
    await eventually(lambda: len(site.engines["m"].seen) == 2)
    (await site.connect()).post(BODY, headers="x-tier: gold\r\n")
    answer = await second.answer()
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (429, "Preempted")
    assert answer.headers["retry-after"]
    await eventually(lambda: len(site.engines["m"].seen) == 3)
    await eventually(lambda: site.engines["m"].gone == 1)
    assert await site.metric('fulcrum_gateway_rejected_total{class="rest",reason="Preempted"}') == 1
    assert site.gateway.registry.workers[0].in_flight == 2


async def test_a_batch_request_makes_way_and_is_no_load(make_site: MakeSite, make_agent: MakeAgent) -> None:
    site = await slow_worker(make_site, make_agent, WITH_BATCH, load={"max_batched_tokens": 50})
    batch = await site.connect()
    batch.post(BODY, headers="x-tier: spare\r\n")
    await eventually(lambda: len(site.engines["m"].seen) == 1)
    refused = await site.post(BODY, headers="x-tier: spare\r\n")
    assert (refused.status, refused.headers["x-fulcrum-rejected"]) == (429, "NothingIdle")
    (await site.connect()).post(BODY)
    answer = await batch.answer()
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (429, "NothingIdle")
    await eventually(lambda: site.engines["m"].gone == 1)
    assert await site.metric('fulcrum_gateway_rejected_total{class="spare",reason="NothingIdle"}') == 2
    assert await site.metric('fulcrum_gateway_arrivals_total{class="spare"}') == 0
    assert await site.metric('fulcrum_gateway_arrivals_total{class="rest"}') == 1
    streamed = await site.post({**BODY, "stream": True}, headers="x-tier: spare\r\n")
    assert streamed.status == 400


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ("", "rest"),
        ("x-tier: gold\r\n", "gold"),
        ("X-TIER:  gold \r\n", "gold"),
        ("x-tier: Gold\r\n", "rest"),
        ("x-tier: gold\r\nx-tier: lead\r\n", "rest"),
    ],
)
async def test_a_header_selects_the_class(make_site: MakeSite, headers: str, name: str) -> None:
    site = await make_site(Engine("m", Role.MIXED), config={"admission": BOTH_CLASSES})
    assert (await site.post(BODY, headers=headers)).status == 200
    assert await site.metric(f'fulcrum_gateway_requests_total{{code="200",class="{name}"}}') == 1
    assert await site.metric(f'fulcrum_gateway_arrivals_total{{class="{name}"}}') == 1
    # A request after it on the same connection has no class of its predecessor's.
    client = await site.connect()
    for each in (headers, ""):
        client.post(BODY, headers=each)
        assert (await client.answer()).status == 200
    assert await site.metric('fulcrum_gateway_arrivals_total{class="rest"}') == (3 if name == "rest" else 1)


async def test_pools_get_what_they_admit(make_site: MakeSite) -> None:
    pools = (
        GatewayPool(name="gpu", admits=PoolAdmits(classes=("gold",))),
        GatewayPool(name="cpu", admits=PoolAdmits(classes=("rest",), max_prompt_tokens=150)),
    )
    site = await make_site(
        Engine("g", Role.MIXED, facts={"pool": "gpu"}),
        Engine("c", Role.MIXED, facts={"pool": "cpu"}),
        config={"admission": Admission(classes=CLASSES), "pools": pools},
    )
    for _ in range(4):
        assert (await site.post(BODY)).headers["x-fulcrum-path"] == "c"
        assert (await site.post(BODY, headers="x-tier: gold\r\n")).headers["x-fulcrum-path"] == "g"
    answer = await site.post({**BODY, "prompt": list(range(200))})
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (400, "NeverFits")
    assert "retry-after" not in answer.headers


async def test_workers_of_different_revisions_are_never_paired(make_site: MakeSite) -> None:
    site = await make_site(
        Engine("p1", Role.PREFILL, facts={"revision": "1"}),
        Engine("d1", Role.DECODE, facts={"revision": "1"}),
        Engine("p2", Role.PREFILL, facts={"revision": "2"}),
        Engine("d2", Role.DECODE, facts={"revision": "2"}),
    )
    paths = {(await site.post({**BODY, "prompt": [number]})).headers["x-fulcrum-path"] for number in range(20)}
    assert paths == {"p1,d1", "p2,d2"}


async def test_turns_of_a_conversation_return_to_the_worker_that_has_them(make_site: MakeSite) -> None:
    prefills = [Engine(f"p{number}", Role.PREFILL) for number in range(4)]
    site = await make_site(*prefills, Engine("d", Role.DECODE))
    homes: list[str] = []
    for talk in range(3):
        text = f"conversation {talk} " * 60
        paths = []
        for turn in range(4):
            text += f"turn {turn} and a long answer " * 10
            answer = await site.post({"model": "m", "prompt": text, "max_tokens": 3})
            paths.append(answer.headers["x-fulcrum-path"].split(",")[0])
        assert len(set(paths[1:])) == 1, paths
        homes.append(paths[0])
    assert len(set(homes)) == 3


async def test_what_workers_have_below_their_kv_cache_is_known_to_a_single_gateway(make_site: MakeSite) -> None:
    offload = OffloadReport(policy="load", host_bytes=1 << 30, host_tokens=50_000)
    agent = await Agent(report(offload=offload)).start()
    site = await make_site(Engine("m", Role.MIXED, facts={"agent_port": agent.port}))
    (worker,) = site.gateway.registry.cluster.workers.by_name.values()
    await eventually(lambda: worker.tiers is not None)
    assert worker.tiers == tiers_of(offload)
    await agent.stop()
