"""One request's trace, as a collector gets it of the gateway and of both engines."""

from __future__ import annotations

import json
import urllib.request

from local_cluster import Cluster, wait_until
from tests.gateway.tracing.collector import Collector
from tests.machine import deadline_seconds

_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_TOKENS = 4


def assert_one_tree(cluster: Cluster, collector: Collector) -> None:
    """Of three requests only that of a sampled trace is sent: its root, both legs, and vLLM's span under each."""
    before = len(collector.spans)
    for trace in (f"00-{_TRACE}-00f067aa0ba902b7-01", f"00-{'f' * 32}-00f067aa0ba902b7-00", None):
        _ask(cluster, {} if trace is None else {"traceparent": trace})
    wait_until("five spans", lambda: len(collector.spans) >= before + 5, seconds=60)
    spans = collector.spans[before:]
    assert {span.trace_id for span in spans} == {_TRACE}, spans
    (root,) = (span for span in spans if span.name == f"text_completion {cluster.name}")
    legs = {span.name: span for span in spans if span.parent_id == root.span_id}
    assert legs.keys() == {"prefill", "decode"}
    for leg in legs.values():
        (of_engine,) = (span for span in spans if span.parent_id == leg.span_id)
        assert of_engine.resource["service.name"] == "vllm"
        assert of_engine.attributes["gen_ai.usage.completion_tokens"] == (1 if leg.name == "prefill" else _TOKENS)
        assert "traced" not in repr(of_engine), "no span holds a prompt"
    assert len(spans) == 5


def _ask(cluster: Cluster, headers: dict[str, str]) -> None:
    prompt = "traced: " + ", ".join(str(number) for number in range(1, 60))
    body = {"model": cluster.name, "prompt": prompt, "max_tokens": _TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"{cluster.endpoint()}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
        assert "," in response.headers["x-fulcrum-path"]
        response.read()
