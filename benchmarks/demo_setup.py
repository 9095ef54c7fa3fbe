"""What the demo tells the cluster: promises, split, mode; and the question that it asks."""

from __future__ import annotations

import json
import urllib.request
from typing import Final

from demo_engines import is_ready, not_ready
from demo_screen import command, wait
from local_cluster import Cluster, wait_until

from fulcrum.replay import LatencyLimits

QUESTION: Final = "What is the capital of France? Answer in one sentence."
READY_SECONDS: Final = 900.0
"""Four engines of one core in all, each of which needs a minute of a core's time to start, and the gateway's pairs."""
ANSWER_SECONDS: Final = 300.0


def wait_for(cluster: Cluster, what: str) -> None:
    """Wait until all workers serve, and the gateways know the newest spec and have tried all pairs of workers."""
    wait(what, lambda: is_ready(cluster), seconds=READY_SECONDS, how_far=lambda: not_ready(cluster))


def promise(cluster: Cluster, slo: LatencyLimits) -> None:
    """Set both promises, and wait until the gateways know them."""
    promises = {"ttft": f"{slo.ttft_seconds * 1000:.0f}ms", "tpot": f"{slo.tpot_seconds * 1000:.0f}ms"}
    patch(cluster, {"slo": promises})
    wait_for(cluster, "the gateway to know the promises")


def begin_at(cluster: Cluster, prefill: int, decode: int) -> None:
    """Give the cluster a split that stands until the operator may act."""
    wanted = {"prefill": prefill, "decode": decode}
    set_balance(cluster, mode="Manual", ratio=wanted)
    wait(f"{prefill}P:{decode}D", lambda: cluster.roles() == wanted, seconds=120)
    set_balance(cluster, mode="Observe")


def set_balance(cluster: Cluster, *, mode: str, ratio: dict[str, int] | None = None) -> None:
    patch(cluster, {"balance": {"mode": mode, "ratio": ratio}})


def patch(cluster: Cluster, spec: dict[str, object]) -> None:
    command(cluster, "patch", "ic", cluster.name, "--type", "merge", "-p", json.dumps({"spec": spec}))


def ask(cluster: Cluster) -> str:
    """The answer to the question, over the cluster's OpenAI-compatible endpoint; asked again when it is turned away."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": cluster.name, "messages": messages, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{cluster.endpoint()}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )

    def answer() -> str:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            return str(json.load(response)["choices"][0]["message"]["content"]).strip()

    return wait_until("an answer to the question", answer, seconds=ANSWER_SECONDS, every_seconds=2.0)
