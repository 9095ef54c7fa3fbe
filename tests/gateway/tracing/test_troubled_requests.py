"""What a trace shows of requests that did not go straight: turned away, cut and resumed, left by their client."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually
from tests.gateway.models import Cut, Model
from tests.gateway.tracing.collector import Collector, spans_of, traced

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionPolicy

BODY = {"model": "m", "prompt": "a b", "max_tokens": 3}


async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await asyncio.Event().wait()
    return True


async def test_a_request_that_is_turned_away_says_why(collector: Collector, make_site: MakeSite) -> None:
    agent = await Agent(report(max_batch=1)).start()
    engine = Engine("w", Role.MIXED, behave=hang, facts={"pool": "x", "agent_port": agent.port})
    admission = Admission(policy=AdmissionPolicy.THRESHOLD)
    site = await make_site(engine, config={**traced(collector), "admission": admission})
    await eventually(lambda: site.gateway.registry.workers[0].ranks[0].state.engine.known)
    (await site.connect()).post(BODY)
    await eventually(lambda: len(engine.seen) == 1)
    assert (await site.post(BODY)).status == 429
    spans = await spans_of(collector, 1)
    told = spans["text_completion m"].attributes
    assert told["http.response.status_code"] == 429
    assert told["fulcrum.admission.decision"] == "rejected"
    assert told["fulcrum.reason"] == told["error.type"] == "QueueFull"
    assert told["fulcrum.attempts"] == 0
    await agent.stop()


async def test_a_resumed_stream_is_one_tree(collector: Collector, make_site: MakeSite) -> None:
    models = [Model("p", Role.PREFILL), Model("d1", Role.DECODE), Model("d2", Role.DECODE)]
    models[1].cuts = models[2].cuts = [Cut(7, "reset")]
    site = await make_site(*models, config=traced(collector))
    body = {**BODY, "max_tokens": 40, "temperature": 0, "stream": True, "ignore_eos": True}
    assert b"[DONE]" in (await site.post(body)).body
    await spans_of(collector, 6)
    (root,) = (span for span in collector.spans if span.name == "text_completion m")
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert not root.failed
    assert root.attributes["fulcrum.attempts"] == 2
    assert root.attributes["gen_ai.usage.output_tokens"] == 40
    legs = [span for span in collector.spans if span is not root]
    assert all(leg.parent_id == root.span_id for leg in legs)
    told = [(leg.name, leg.attributes["fulcrum.attempt"], leg.attributes["fulcrum.resumes"]) for leg in legs]
    assert sorted(told) == [
        ("decode", 1, False), ("decode", 2, True), ("prefill", 1, False), ("prefill", 2, True), ("resume", 2, True),
    ]  # fmt: skip
    (cut,) = (leg for leg in legs if leg.failed)
    assert (cut.name, cut.attributes["error.type"]) == ("decode", "reset")
    second = next(leg for leg in legs if leg.name == "decode" and leg is not cut)
    assert second.attributes["fulcrum.worker.name"] != cut.attributes["fulcrum.worker.name"]


async def test_a_client_that_left_is_told(collector: Collector, make_site: MakeSite) -> None:
    engine = Engine("w", Role.MIXED, behave=hang)
    site = await make_site(engine, config=traced(collector))
    client = await site.connect()
    client.post(BODY)
    await eventually(lambda: len(engine.seen) == 1)
    client.close()
    spans = await spans_of(collector, 2)
    root, leg = spans["text_completion m"], spans["whole"]
    assert root.attributes["http.response.status_code"] == 499
    assert root.attributes["error.type"] == leg.attributes["error.type"] == "cancelled"
    assert root.failed
    assert leg.failed
    assert leg.parent_id == root.span_id


async def test_log_lines_name_the_trace(
    collector: Collector, make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector, ratio=0.0), access_log=True)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    await site.post(BODY, headers=f"traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n")
    await site.post(BODY)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request id=")]
    assert [f" trace={trace}" in line for line in lines] == [True, False]
    assert "trace=" not in lines[1]
