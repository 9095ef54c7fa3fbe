"""Traces of requests, as a collector and the engines see them."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from _loopback.launch import free_ports
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually
from tests.gateway.tracing.collector import Collector, spans_of, traced

from fulcrum.api.gateway import GatewayTracing
from fulcrum.api.names import Role
from fulcrum.gateway.config import ConfigError, read_settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PROMPT = "a prompt that no collector may see"
BODY = {"model": "m", "prompt": PROMPT, "max_tokens": 3}
SERVER, CLIENT = 2, 3


@pytest.mark.parametrize("stream", [False, True])
async def test_one_tree_per_request_with_both_legs(collector: Collector, make_site: MakeSite, stream: bool) -> None:
    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE), config=traced(collector))
    answer = await site.post({**BODY, "stream": stream})
    assert answer.status == 200
    spans = await spans_of(collector, 3)
    root, prefill, decode = (spans[name] for name in ("text_completion m", "prefill", "decode"))
    assert (root.kind, prefill.kind, decode.kind) == (SERVER, CLIENT, CLIENT)
    assert root.parent_id == ""
    assert {prefill.parent_id, decode.parent_id} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    told = root.attributes
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.request.model"] == "m"
    assert told["gen_ai.request.max_tokens"] == 3
    assert told["gen_ai.request.stream"] is stream
    assert told["gen_ai.usage.input_tokens"] == 7
    assert told["gen_ai.usage.output_tokens"] == 3
    assert told["http.response.status_code"] == 200
    assert told["fulcrum.admission.decision"] == "admitted"
    assert told["fulcrum.path"] == "p,d"
    assert told["fulcrum.ttft.seconds"] >= 0  # the loop's clock counts milliseconds
    assert prefill.attributes["fulcrum.worker.name"] == "p"
    assert decode.attributes["fulcrum.worker.name"] == "d"
    assert decode.attributes["fulcrum.worker.role"] == "decode"
    assert ("gen_ai.response.time_to_first_chunk" in decode.attributes) is stream
    assert root.resource["service.name"] == "fulcrum-gateway"
    assert collector.paths[0] == "/v1/traces"
    for span in collector.spans:
        assert PROMPT not in repr(span)
        assert "p0" not in span.attributes.values()
    # Each engine's spans become children of its own leg.
    for name, span in (("p", prefill), ("d", decode)):
        assert site.engines[name].seen[0].headers["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"
    tracing = site.gateway.tracing
    assert tracing is not None
    await eventually(lambda: tracing.counts()["exported"] == 3)
    assert await site.metric('fulcrum_gateway_trace_spans_total{outcome="exported"}') == 3


async def test_sampled_parent_is_continued(collector: Collector, make_site: MakeSite) -> None:
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector, ratio=0.0))
    await site.post(BODY, headers=f"traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=1\r\n")
    spans = await spans_of(collector, 2)
    root, leg = spans["text_completion m"], spans["whole"]
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    assert leg.parent_id == root.span_id
    headers = site.engines["w"].seen[0].headers
    assert headers["traceparent"] == f"00-{TRACE}-{leg.span_id}-01"
    assert headers["tracestate"] == "a=1"


async def test_unsampled_parent_is_passed_on_and_told_to_no_collector(
    collector: Collector, make_site: MakeSite
) -> None:
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector))
    await site.post(BODY, headers=f"traceparent: 00-{TRACE}-{SPAN}-00\r\n")
    assert site.engines["w"].seen[0].headers["traceparent"] == f"00-{TRACE}-{SPAN}-00"
    await site.post(BODY)
    spans = await spans_of(collector, 2)
    assert TRACE not in {span.trace_id for span in spans.values()}


async def test_request_without_parent_is_not_traced_by_engines_either(
    collector: Collector, make_site: MakeSite
) -> None:
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector, ratio=0.0))
    await site.post(BODY)
    assert site.engines["w"].seen[0].headers["traceparent"].endswith("-00")
    assert not collector.spans


async def test_failed_leg_and_the_next_attempt_are_in_one_tree(collector: Collector, make_site: MakeSite) -> None:
    async def breaks(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if not any(each.seen for each in others if each is not engine):
            writer.transport.abort()
            return True
        return False

    others = [Engine("a", Role.MIXED, behave=breaks), Engine("b", Role.MIXED, behave=breaks)]
    site = await make_site(*others, config=traced(collector))
    assert (await site.post(BODY)).status == 200
    await spans_of(collector, 3)
    legs = sorted(
        (span for span in collector.spans if span.name == "whole"), key=lambda span: span.attributes["fulcrum.attempt"]
    )
    assert [leg.failed for leg in legs] == [True, False]
    assert legs[0].attributes["error.type"] == "reset"
    root = next(span for span in collector.spans if span.kind == SERVER)
    assert root.attributes["fulcrum.attempts"] == 2
    assert not root.failed


async def test_refusal_is_told_with_its_reason(collector: Collector, make_site: MakeSite) -> None:
    site = await make_site(config=traced(collector))
    assert (await site.post(BODY)).status == 503
    spans = await spans_of(collector, 1)
    root = spans["text_completion m"]
    assert root.failed
    assert root.attributes["fulcrum.admission.decision"] == "rejected"
    assert root.attributes["error.type"] == root.attributes["fulcrum.reason"] == "NoWorker"


async def test_dead_collector_costs_a_counter(make_site: MakeSite) -> None:
    (port,) = free_ports(1)
    tracing = GatewayTracing(endpoint=f"http://127.0.0.1:{port}", sampling_ratio=1.0)
    site = await make_site(Engine("w", Role.MIXED), config={"tracing": tracing})
    assert (await site.post(BODY)).status == 200
    assert site.gateway.tracing is not None
    tracing_now = site.gateway.tracing
    await eventually(lambda: tracing_now.counts()["failed"] == 2)


async def test_without_tracing_no_header_is_read_or_sent(make_site: MakeSite) -> None:
    site = await make_site(Engine("w", Role.MIXED))
    await site.post(BODY, headers=f"traceparent: 00-{TRACE}-{SPAN}-01\r\n")
    assert "traceparent" not in site.engines["w"].seen[0].headers
    assert "trace_spans" not in await site.page()


def test_without_tracing_nothing_of_the_sdk_is_imported() -> None:
    program = """
import asyncio, sys
from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings
async def main():
    Gateway(Settings(config=GatewayConfig(cluster="c", served_name="m", model="m"), host="127.0.0.1"),
            asyncio.get_running_loop())
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf", "requests"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("endpoint", "fix"),
    [
        ("collector:4318", "http://collector.monitoring:4318"),
        ("http://collector:4317", "4318"),
        ("http://user:word@collector:4318", "let a collector beside"),
        ("http://collector:99999", "http://collector.monitoring:4318"),
    ],
)
def test_bad_endpoint_is_refused_with_field_and_fix(endpoint: str, fix: str) -> None:
    document = f'{{"cluster":"c","servedName":"m","model":"m","tracing":{{"endpoint":"{endpoint}"}}}}'
    with pytest.raises(ConfigError, match=r"tracing\.endpoint") as refused:
        read_settings({}, config_json=document)
    assert fix in str(refused.value)
