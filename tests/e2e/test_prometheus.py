"""Decisions from a real Prometheus: they stop with it, say so, and come back with it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from answers import Question
from local_cluster import Cluster, wait_until
from moving_load import ANSWERS, PROMPTS
from tests.prometheus_server import PrometheusServer, prometheus_server

from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

DECIDED_SECONDS = 300
"""Load is averaged over a minute of scrapes, and the engines have their queues to work off."""
RATE = 8
"""Requests per second: surely more than any role of these engines carries; most are turned away."""
HELD_SECONDS = 30
"""Three intervals of the forecast, and as long as three flips of one worker are apart at least."""


def reason(cluster: Cluster) -> str:
    conditions: list[dict[str, Any]] = cluster.cluster()["status"]["conditions"]
    return next(str(c["reason"]) for c in conditions if c["type"] == "Progressing")


def at_least(cluster: Cluster, role: str, count: int) -> bool:
    return cluster.roles().get(role, 0) >= count


def asked(cluster: Cluster, mix: tuple[int, int]) -> list[Question]:
    """Questions that no cache knows."""
    prompt_tokens, output_tokens = mix
    fixed = {"model": cluster.name, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return [Question(body={**fixed, "prompt": f"{n} " + "word " * prompt_tokens}, answer="") for n in range(5000)]


def held(cluster: Cluster, flips: int, *, checks: int) -> bool:
    """True after so many looks at a cluster that changed nothing meanwhile."""
    seen = 0

    def look() -> bool:
        nonlocal seen
        assert cluster.flips() == flips, "a flip without metrics"
        seen += 1
        return seen >= checks

    return wait_until("time to pass without a flip", look, seconds=10 * checks, every_seconds=1)


async def test_decisions_follow_prometheus(auto: Cluster, tmp_path: Path) -> None:
    auto.patch({"admission": {"policy": "Predictive"}})
    await asyncio.to_thread(wait_until, "the gateway", auto.rolled_out, seconds=120)
    targets = [f"{pod['status']['podIP']}:8082" for pod in auto.pods("gateway")]
    async with prometheus_server(tmp_path, *targets, scrape_interval="1s") as prometheus:
        await _follow(auto, prometheus)
    auto.kubectl(
        "patch",
        "ic",
        auto.name,
        "--type",
        "merge",
        "-p",
        '{"spec":{"metrics":{"prometheus":null},"balance":{"rehearse":null},"admission":{"policy":"Off"}}}',
    )


async def _follow(auto: Cluster, prometheus: PrometheusServer) -> None:
    until = partial(asyncio.to_thread, wait_until)
    auto.patch({"balance": {"mode": "Manual", "ratio": {"prefill": 3, "decode": 1}}})
    await until("3P:1D", partial(at_least, auto, "prefill", 3), seconds=120)
    # A rehearsal plays what gateways tell: this is about what Prometheus says.
    balance = {"mode": "Auto", "ratio": None, "rehearse": "Off"}
    auto.patch({"balance": balance, "metrics": {"prometheus": {"url": prometheus.url}}})
    with SteadyLoad(auto.endpoint(), asked(auto, ANSWERS), rate=RATE):
        await until("flips by what Prometheus says", partial(at_least, auto, "decode", 3), seconds=DECIDED_SECONDS)
    await prometheus.stop()
    await until("a condition that says so", lambda: reason(auto) == "MetricsUnknown", seconds=180)
    await until("nobody between two roles", lambda: "draining" not in auto.roles(), seconds=180)
    flips = auto.flips()
    with SteadyLoad(auto.endpoint(), asked(auto, PROMPTS), rate=RATE):
        await asyncio.to_thread(held, auto, flips, checks=HELD_SECONDS)
        assert reason(auto) == "MetricsUnknown"
        assert "Prometheus" in auto.kubectl("get", "ic", auto.name, "-o", "jsonpath={.status.conditions[*].message}")
        await prometheus.start()
        await until("a flip once it is back", partial(at_least, auto, "prefill", 2), seconds=DECIDED_SECONDS)
    await until("a condition without it", lambda: reason(auto) != "MetricsUnknown", seconds=60)
