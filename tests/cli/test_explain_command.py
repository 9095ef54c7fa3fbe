"""`fulcrum explain` against a real API server, with a status as the operator writes it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

import msgspec
import pytest
from tests.controller.cluster import BIN, ApiServer, Cluster
from tests.machine import deadline_seconds

from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    Candidate,
    Condition,
    ConditionStatus,
    ConditionType,
    DecidedLoad,
    Decision,
    Explanation,
    InferenceClusterStatus,
    RehearsalStatus,
)

pytestmark = pytest.mark.integration

WHY = Explanation(
    load=DecidedLoad(
        rate=25.5, lower_rate=23.4, upper_rate=27.6, forecast_rate=30.5, input_tokens=397.0, output_tokens=579.0
    ),
    attainment=0.987,
    candidates=(
        Candidate(layout="3P:9D", attainment=0.984, lowest=0.935, verdict="stands"),
        Candidate(layout="2P:10D", attainment=1.0, lowest=0.994, verdict="chosen: +12.4 requests within 30 s"),
    ),
    changes=("another split, once it brings more",),
)
REJECTED = Condition(
    type=ConditionType.DEGRADED,
    status=ConditionStatus.TRUE,
    reason=Reason.REQUESTS_REJECTED,
    message="Some of all requests are turned away.",
    observed_generation=1,
    last_transition_time="2026-01-01T00:00:00Z",
)
PLAYED = RehearsalStatus(
    time="2026-01-01T00:04:58Z",
    stood="3P:9D",
    stood_attainment=0.61,
    best="2P:10D",
    best_attainment=0.93,
    chosen="2P:10D",
    requests=400,
    gain=128.0,
    error=11.0,
    off=-0.12,
)


def explain(server: ApiServer, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(BIN / "fulcrum"), "explain", *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=deadline_seconds(120),
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def set_status(cluster: Cluster, status: InferenceClusterStatus) -> None:
    patch = msgspec.json.encode({"status": msgspec.to_builtins(status)}).decode()
    cluster.server.kubectl(
        "patch", "ic", cluster.name, "-n", cluster.namespace, "--subresource=status", "--type=merge", "-p", patch
    )


async def test_a_flip_and_rejections_are_explained(cluster: Cluster) -> None:
    await cluster.apply()
    flip = Decision(
        action="Flip c-p-1",
        reason=Reason.LOAD_SHIFTED,
        from_="3P:9D",
        to="2P:10D",
        time="2026-01-01T00:05:00Z",
        explanation=WHY,
    )
    set_status(
        cluster,
        InferenceClusterStatus(
            ratio="2P:10D",
            attainment=0.91,
            rejected_ratio=0.04,
            last_decision=flip,
            conditions=(REJECTED,),
            rehearsal=PLAYED,
        ),
    )
    out = await asyncio.to_thread(explain, cluster.server, "ic/c", "-n", cluster.namespace)
    lines = out.splitlines()
    assert "2026-01-01T00:05:00Z  Flip c-p-1: 3P:9D -> 2P:10D (LoadShifted)" in lines
    assert "load       25.5 requests/s of 397 + 579 tokens, between 23.4 and 27.6" in lines
    assert "forecast   up to 30.5 requests/s within the horizon" in lines
    assert "3P:9D    98.4%   93.5%  stands" in lines
    assert "2P:10D  100.0%   99.4%  chosen: +12.4 requests within 30 s" in lines
    assert "  another split, once it brings more" in lines
    assert "91.0% inside the SLO" in out
    assert "4.0% turned away" in out
    assert (
        "rehearsed  2026-01-01T00:04:58Z, 400 requests: 3P:9D 61.0% inside, 2P:10D 93.0% (+128 requests, error 11); "
        "2P:10D was chosen" in lines
    )
    assert "           3P:9D served 12.0% less of the last ones than a play of them says" in lines
    assert "Degraded True, RequestsRejected: Some of all requests are turned away." in out
    written = json.loads(await asyncio.to_thread(explain, cluster.server, "c", "-n", cluster.namespace, "--json"))
    assert msgspec.convert(written, Decision) == flip


async def test_without_a_decision_it_says_so(cluster: Cluster) -> None:
    missing = await asyncio.to_thread(explain, cluster.server, "ic/nobody", "-n", cluster.namespace, code=1)
    assert f"there is no InferenceCluster nobody in namespace {cluster.namespace}" in missing
    await cluster.apply()
    out = await asyncio.to_thread(explain, cluster.server, "-n", cluster.namespace)
    assert "No decision has changed anything yet." in out
    assert "unknown inside the SLO" in out
