"""Exemplars on histograms of latencies, as parsers and a real Prometheus read them."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from tests.gateway.conftest import Engine, MakeSite, Site
from tests.gateway.tracing.collector import Collector, traced
from tests.machine import deadline_seconds, eventually
from tests.prometheus_server import prometheus_server

from fulcrum.api.names import Role

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n"
BODY = {"model": "m", "prompt": "a b", "max_tokens": 3, "stream": True}
LATENCIES = {
    f"fulcrum_gateway_{name}_bucket"
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds")
}
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


async def scrape(site: Site, accept: str) -> tuple[str, str]:
    """Content type and page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: g\r\nAccept: {accept}\r\n\r\n".encode())
    async with asyncio.timeout(deadline_seconds(60)):
        answer = (await reader.read()).decode()
    writer.close()
    head, _, page = answer.partition("\r\n\r\n")
    return head.partition("content-type: ")[2].partition("\r\n")[0], page


async def test_open_metrics_carries_the_trace_of_the_last_sampled_request(
    collector: Collector, make_site: MakeSite
) -> None:
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector, ratio=0.0))
    await site.post(BODY)
    kind, page = await scrape(site, ACCEPT)
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert "trace_id" not in page, "no request was sampled"
    await site.post(BODY, headers=SAMPLED)
    _, page = await scrape(site, ACCEPT)
    families = {family.name: family for family in text_string_to_metric_families(page)}
    samples = [sample for family in families.values() for sample in family.samples]
    told = {sample.name: sample for sample in samples if sample.exemplar is not None}
    assert told.keys() == LATENCIES
    for sample in told.values():
        assert sample.exemplar is not None
        assert sample.exemplar.labels == {"trace_id": TRACE}
        assert sample.exemplar.value <= float(sample.labels["le"])
    # The same series as in the text format, which stays as it is without that header.
    kind, plain = await scrape(site, "text/plain")
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "trace_id" not in plain
    assert {(sample.name, *sorted(sample.labels.items())) for sample in samples} == {
        (sample.name, *sorted(sample.labels.items())) for family in plain_families(plain) for sample in family.samples
    }


async def test_without_tracing_the_page_is_the_same_for_all(make_site: MakeSite) -> None:
    site = await make_site(Engine("w", Role.MIXED))
    await site.post(BODY, headers=SAMPLED)
    kind, page = await scrape(site, ACCEPT)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in page


@pytest.mark.integration
async def test_prometheus_keeps_them(collector: Collector, make_site: MakeSite, tmp_path: Path) -> None:
    site = await make_site(Engine("w", Role.MIXED), config=traced(collector, ratio=0.0))
    await site.post(BODY, headers=SAMPLED)
    target = f"127.0.0.1:{site.gateway.inside_port}"
    async with prometheus_server(tmp_path, target, features=("exemplar-storage",)) as server:
        series = "fulcrum_gateway_time_to_first_token_seconds_bucket"
        query = urllib.parse.urlencode({"query": series, "start": 0, "end": 1 << 33})

        def asked() -> Any:
            with urllib.request.urlopen(
                f"{server.url}/api/v1/query_exemplars?{query}", timeout=deadline_seconds(30)
            ) as answer:
                return json.load(answer)["data"]

        found = await eventually(lambda: asyncio.to_thread(asked), what="an exemplar")
    assert [each["labels"] for each in found[0]["exemplars"]] == [{"trace_id": TRACE}]
    assert found[0]["seriesLabels"]["fulcrum_cluster"] == "c"
