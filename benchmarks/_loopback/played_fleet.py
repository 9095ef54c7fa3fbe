"""A made-up fleet for the dashboard: figures that move like those of real clusters, and say that they are made up."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from fulcrum.api.names import LABEL_POOL, LABEL_ROLE, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.worker import LoadReport
from fulcrum.dashboard import PAGE_PATH, Board, ClusterFacts, Reading, routes
from fulcrum.dashboard.past import board_with_past
from fulcrum.load.traffic import Traffic

Json = dict[str, Any]

ORIGIN: Final = "made-up figures"
_NAMES: Final = ("chat", "code", "search", "summarize", "agents", "translate", "vision", "batch")
_MODELS: Final = ("Llama-3.1-70B-Instruct", "Qwen2.5-Coder-32B", "Mistral-Small-24B", "Llama-3.1-8B-Instruct")


@dataclass(slots=True, kw_only=True)
class _Played:
    """One cluster: its load swings, and its split follows with a delay."""

    name: str
    namespace: str
    model: str
    workers: int
    requests_per_second: float
    phase: float
    fault: Reason | None = None
    events: list[Json] = field(default_factory=list)
    prefill: int = 0
    decided: Json | None = None

    def load(self, now: float) -> float:
        """Requests per second at a moment."""
        swing = math.sin(now / 900 + self.phase) + 0.15 * math.sin(now / 47 + 3 * self.phase)
        return self.requests_per_second * (1 + 0.45 * swing)

    def wanted_prefill(self, now: float) -> int:
        """Prefill workers that the load asks for."""
        share = 0.38 + 0.17 * math.sin(now / 900 + self.phase)
        return min(self.workers - 1, max(1, round(self.workers * share)))


class PlayedFleet:
    """A source of the dashboard. Everything changes at each read, as in a fleet under load."""

    def __init__(
        self, *, clusters: int, workers: int, largest: int | None = None, seed: int = 1, now: Callable[[], float]
    ) -> None:
        """`workers` in each cluster, and `largest` in the first one."""
        rng = random.Random(seed)
        self._rng = rng
        self._now = now
        self._version = 0
        self._clusters = [
            _Played(
                name=_NAMES[i] if i < len(_NAMES) else f"{_NAMES[i % len(_NAMES)]}-{i}",
                namespace=("serving", "research", "platform")[i % 3],
                model=_MODELS[i % len(_MODELS)],
                workers=largest
                if i == 0 and largest is not None
                else max(2, workers + (i % 3 - 1 if clusters < 20 else 0)),
                requests_per_second=rng.uniform(4, 40),
                phase=rng.uniform(0, 6),
                fault=Reason.OVER_CAPACITY if i == 2 else None,
            )
            for i in range(clusters)
        ]

    async def read(self, watched: frozenset[str]) -> Reading:
        """As `fulcrum.dashboard.Source`."""
        self._version += 1
        now = self._now()
        return Reading(clusters=[self._facts(cluster, now) for cluster in self._clusters])

    def _facts(self, cluster: _Played, now: float) -> ClusterFacts:
        before, cluster.prefill = cluster.prefill, cluster.wanted_prefill(now - 40)
        if before and before != cluster.prefill:
            self._note_flip(cluster, before, now)
        names = [f"{cluster.name}-h100-{n}" for n in range(cluster.workers)]
        roles = [Role.PREFILL if n < cluster.prefill else Role.DECODE for n in range(cluster.workers)]
        pods = [_pod(name, role, now) for name, role in zip(names, roles, strict=True)]
        busy = 0.55 + 0.3 * math.sin(now / 900 + cluster.phase)
        return ClusterFacts(
            document=self._document(cluster, now),
            pods=pods,
            loads={name: self._load(role, busy) for name, role in zip(names, roles, strict=True)},
            traffic=Traffic(
                window_seconds=30,
                rate=cluster.load(now) * self._rng.uniform(0.97, 1.03),
                rejections={Reason.TTFT_UNREACHABLE: 0.021, Reason.OVERLOADED: 0.008} if cluster.fault else {},
            ),
            events=cluster.events,
        )

    def _load(self, role: Role, busy: float) -> LoadReport:
        level = busy * (0.35 if role is Role.PREFILL else 1.0)
        return LoadReport(
            role=role,
            role_epoch=1,
            ready=True,
            draining=False,
            running=self._rng.randint(1, 4) if role is Role.PREFILL else self._rng.randint(12, 60),
            waiting=self._rng.choice((0, 0, 0, 1, 2)),
            kv_usage=min(0.99, max(0.02, level + self._rng.uniform(-0.12, 0.12))),
        )

    def _document(self, cluster: _Played, now: float) -> Json:
        target, decode = cluster.wanted_prefill(now), cluster.workers - cluster.prefill
        rate, attainment = cluster.load(now + 90), 0.985 + 0.012 * math.sin(now / 300 + cluster.phase)
        if cluster.fault:
            attainment -= 0.07
        return {
            "metadata": {
                "name": cluster.name,
                "namespace": cluster.namespace,
                "uid": cluster.name,
                "resourceVersion": str(self._version),
            },
            "spec": {
                "model": {"name": cluster.model},
                "slo": {"ttft": "500ms", "tpot": "50ms", "attainment": 0.95},
                "balance": {"mode": "Auto"},
            },
            "status": {
                "conditions": _conditions(cluster, now),
                "endpoint": f"http://{cluster.name}-gateway.{cluster.namespace}:8080",
                "ratio": f"{cluster.prefill}P:{decode}D",
                "ready": f"{cluster.workers}/{cluster.workers}",
                "roles": {
                    "prefill": {"desired": target, "ready": cluster.prefill, "draining": 0},
                    "decode": {"desired": cluster.workers - target, "ready": decode, "draining": 0},
                },
                "attainment": round(attainment, 3),
                **({"lastDecision": cluster.decided} if cluster.decided else {}),
                "rejectedRatio": 0.029 if cluster.fault else 0.0,
                "ttft": {"p50": "142ms", "p90": "610ms" if cluster.fault else "318ms"},
                "tpot": {"p50": "24ms", "p90": "37ms"},
                "forecast": {
                    "method": "arima",
                    "rate": float(f"{rate:.3g}"),
                    "upperRate": float(f"{1.15 * rate:.3g}"),
                    "horizon": "90s",
                    "error": 0.07,
                },
            },
        }

    def _note_flip(self, cluster: _Played, before: int, now: float) -> None:
        grows = cluster.prefill > before
        roles = "decode -> prefill" if grows else "prefill -> decode"
        reason = Reason.LOAD_FORECAST if grows else Reason.LOAD_SHIFTED
        lengths = "1840 + 290" if grows else "620 + 410"
        moved = f"Worker {cluster.name}-h100-{min(before, cluster.prefill)}: {roles} (epoch {len(cluster.events) + 2})"
        cluster.events.append(
            {
                "involvedObject": {"uid": cluster.name, "name": cluster.name},
                "type": "Normal",
                "reason": reason.value,
                "message": f"{moved}, for {cluster.load(now):.1f} requests/s of {lengths} tokens.",
                "lastTimestamp": _stamp(now),
            }
        )
        del cluster.events[:-20]
        cluster.decided = _decision(cluster, before, reason, now)


def _decision(cluster: _Played, before: int, reason: Reason, now: float) -> Json:
    rate = cluster.load(now)
    layouts = [f"{prefill}P:{cluster.workers - prefill}D" for prefill in (before, cluster.prefill)]
    return {
        "action": "SetRole",
        "reason": reason.value,
        "from": layouts[0],
        "to": layouts[1],
        "time": _stamp(now),
        "explanation": {
            "load": {
                "rate": float(f"{rate:.3g}"),
                "lowerRate": float(f"{0.9 * rate:.3g}"),
                "upperRate": float(f"{1.12 * rate:.3g}"),
                "forecastRate": float(f"{1.15 * rate:.3g}"),
                "inputTokens": 1840,
                "outputTokens": 290,
            },
            "attainment": 0.962,
            "candidates": [
                {"layout": layouts[0], "attainment": 0.958, "lowest": 0.913, "verdict": "stands"},
                {
                    "layout": layouts[1],
                    "attainment": 0.991,
                    "lowest": 0.974,
                    "verdict": "chosen: +38.2 requests within 30 s, flips paid",
                },
            ],
            "changes": [
                "another split, once it brings 4.1 more requests within 30s than it costs, and is no loss at any load "
                "within the bounds",
                "more workers, once lower bound or forecast need them to keep 95% inside the SLO",
                "fewer workers, once the most of the last 300s leaves some idle",
            ],
        },
    }


def _conditions(cluster: _Played, now: float) -> list[Json]:
    since = _stamp(now - 4000)
    degraded = (
        (
            "True",
            cluster.fault.value,
            f"More arrives than all {cluster.workers} workers can serve within spec.slo. "
            f"Raise workers.max of a pool: h100 ({cluster.workers}); or widen spec.slo.",
        )
        if cluster.fault
        else ("False", "Healthy", "No worker reports a fault.")
    )
    found = (
        ("Available", "True", "Ready", "Requests are served."),
        ("Progressing", "False", "Reconciled", "The cluster is as its spec says."),
        ("Degraded", *degraded),
    )
    names = ("type", "status", "reason", "message")
    return [
        dict(zip(names, each, strict=True)) | {"observedGeneration": 1, "lastTransitionTime": since} for each in found
    ]


def _pod(name: str, role: Role, now: float) -> Json:
    return {
        "metadata": {
            "name": name,
            "labels": {LABEL_ROLE: role.value, LABEL_POOL: "h100"},
            "creationTimestamp": _stamp(now - 7 * 3600),
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@asynccontextmanager
async def played_dashboard(
    *, clusters: int, workers: int, largest: int | None = None, history_seconds: float = 3600.0
) -> AsyncIterator[str]:
    """Serve the dashboard of a made-up fleet on a free port of this machine; yields the page's URL.

    Its past is played in no time.
    """
    board = await board_with_past(
        lambda clock: PlayedFleet(clusters=clusters, workers=workers, largest=largest, now=clock),
        origin=ORIGIN,
        past_seconds=history_seconds,
    )
    async with served(board) as url:
        yield url


@asynccontextmanager
async def served(board: Board) -> AsyncIterator[str]:
    """Serve the board on a free port of this machine; yields the page's URL."""
    app = web.Application()
    app.add_routes(routes(board, hosts=frozenset({"127.0.0.1"})))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    running = asyncio.create_task(board.run())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{PAGE_PATH}"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()
