"""Frames of `fulcrum top`, as they are printed at a fixed width."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.types import InferenceCluster
from fulcrum.cli.top.frame import frame
from fulcrum.cli.top.view import Arrivals, EventLine, View, WorkerLine

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
CONDITION = {"message": "m", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def cluster(*, spec: dict[str, Any] | None = None, **status: Any) -> Any:
    return load_inference_cluster(
        {
            "apiVersion": "fulcrum.dev/v1alpha1",
            "kind": "InferenceCluster",
            "metadata": {"name": "chat", "namespace": "serving", "uid": "u", "generation": 1},
            "spec": {
                "model": {"name": "m"},
                "slo": {"ttft": "500ms", "tpot": "50ms", "attainment": 0.95},
                "balance": {"mode": "Auto"},
                "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 4}}],
                **(spec or {}),
            },
            "status": status,
        }
    )


def printed(view: View, *, width: int = 100, height: int | None = None) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(frame(view, height=height))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


BATCHES = {"batch": {"claim": "files"}}
FULL = View(
    now=NOW,
    cluster=cluster(
        conditions=[
            {"type": "Available", "status": "True", "reason": "Ready", **CONDITION},
            {"type": "Degraded", "status": "True", "reason": "EngineFailed", **CONDITION},
        ],
        ratio="2P:1D",
        ready="3/4",
        roles={
            "prefill": {"desired": 1, "ready": 2, "draining": 0},
            "decode": {"desired": 3, "ready": 1, "draining": 1},
        },
        attainment=0.912,
        ttft={"p50": "120ms", "p90": "620ms", "p99": "910ms"},
        tpot={"p50": "21ms", "p90": "31ms", "p99": "38ms"},
        rejectedRatio=0.013,
        forecast={
            "method": "arima",
            "rate": 13.1,
            "upperRate": 15.02,
            "error": 0.081,
            "errorAgainstLastValue": 0.72,
            "horizon": "90s",
        },
    ),
    workers=(
        WorkerLine(
            name="chat-p-0",
            role="prefill",
            ready=True,
            state="ready",
            age_seconds=61,
            running=3,
            waiting=12,
            kv_usage=0.375,
            prompt_tokens_per_second=12345.6,
            output_tokens_per_second=10.0,
            answered=True,
        ),
        WorkerLine(name="chat-p-1", role="decode", ready=True, state="ready", age_seconds=7300),
        WorkerLine(
            name="chat-p-2",
            role="draining",
            ready=False,
            state="chat-p-2: CrashLoopBackOff (exit code 70): out of memory",
            age_seconds=200000,
        ),
    ),
    gateways=2,
    gateways_answered=2,
    arrivals=Arrivals(rate=12.34, failed={"Overloaded": 0.25}),
    events=(
        EventLine(
            time=NOW - timedelta(seconds=3),
            reason="LoadShifted",
            message="Worker chat-p-1: prefill -> decode (epoch 4).",
            warning=False,
        ),
        EventLine(time=NOW - timedelta(hours=3), reason="EngineFailed", message="It failed.\nmore", warning=True),
    ),
)

WHOLE = """\
chat in serving   Available   Degraded EngineFailed   Auto   12:00:00 UTC
ratio        2P:1D now, 1P:3D target   3/4 ready, 1 draining
requests     12.3/s now
forecast     13.1/s in 90s, planned for 15.0/s   arima, off by 8% lately (0.72 of last value's)
attainment   91.2% of 95%
latency      TTFT p50 120ms p90 620ms of 500ms p99 910ms   TPOT p50 21ms p90 31ms of 50ms p99 38ms
turned away  1.3% lately, 0.2/s Overloaded

WORKER    ROLE      RUN  WAIT   KV  IN TOK/S  OUT TOK/S  AGE  STATE
chat-p-0  prefill     3    12  38%     12346       10.0  61s  ready
chat-p-1  decode      -     -    -         -          -   2h  ready
chat-p-2  draining    -     -    -         -          -   2d  chat-p-2: CrashLoopBackOff (exit code…
1 of 2 ready workers cannot be asked at their Pod addresses from here: load is shown as -.

AGO  REASON        DECISION
 3s  LoadShifted   Worker chat-p-1: prefill -> decode (epoch 4).
 3h  EngineFailed  It failed."""

NEW = """\
chat in serving   Auto   12:00:00 UTC
ratio        - now, - target   - ready
requests     -/s now
forecast     -
attainment   - of 95%
latency      TTFT p50 - p90 - of 500ms p99 -   TPOT p50 - p90 - of 50ms p99 -
turned away  -, -/s now

No worker yet.
1 of 1 gateways cannot be asked at their Pod addresses from here: requests now are shown as -.

No decision on record."""


def test_a_whole_frame() -> None:
    assert printed(FULL) == WHOLE


def test_a_new_cluster_is_mostly_unknown() -> None:
    assert printed(View(now=NOW, cluster=cluster(), gateways=1)) == NEW


def test_batches_are_shown_where_there_may_be_some() -> None:
    counts = {"waiting": 1, "running": 2, "requests": 400, "completed": 120, "failed": 3}
    assert "batches      -\n" in printed(View(now=NOW, cluster=cluster(spec=BATCHES), gateways=1))
    shown = printed(View(now=NOW, cluster=cluster(spec=BATCHES, batches=counts), gateways=1))
    assert "batches      2 running (120 of 400 requests answered, 3 failed), 1 waiting\n" in shown


QUEUE = {"admission": {"queue": {"maxWait": "5s", "maxRequests": 64}}}


@pytest.mark.parametrize(("each", "around"), [(FULL.cluster, 16), (cluster(spec=BATCHES | QUEUE), 18)])
def test_a_thousand_workers_fit_on_the_screen(each: InferenceCluster, around: int) -> None:
    workers = tuple(
        WorkerLine(name=f"chat-p-{n}", role="decode", ready=True, state="ready", age_seconds=1, answered=True)
        for n in range(1000)
    )
    view = View(now=NOW, cluster=each, workers=workers, events=FULL.events)
    for height in (20, 40):
        lines = printed(view, width=160, height=height).splitlines()
        assert len(lines) <= height
        (rest,) = (line for line in lines if line.endswith("more workers"))
        shown = sum(line.startswith("chat-p-") for line in lines)
        assert rest == f"... and {1000 - shown} more workers"
        assert shown >= height - around
