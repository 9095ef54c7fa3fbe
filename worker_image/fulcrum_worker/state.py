"""What the agent knows about itself; the one mutable thing that the server, the life cycle and the metrics share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from fulcrum.api.worker import EngineSleepState, LoadReport, OffloadReport, SpeedCoefficients, Stage
from fulcrum_worker.adapters import AdapterKeeper
from fulcrum_worker.engine_metrics import EngineMetrics, scrape_engine
from fulcrum_worker.engine_sleep import EngineSleep
from fulcrum_worker.engine_start import Roles
from fulcrum_worker.kv.events import KvEvents
from fulcrum_worker.rank_reports import rank_reports
from fulcrum_worker.readiness import SideChannel, not_ready_reason
from fulcrum_worker.roles import WorkerRole

SCRAPE_TIMEOUT_SECONDS = 2.0
_FRESH_SECONDS = 0.25
"""Several gateways and the controller ask for the load, and a scrape costs vLLM 4 ms (measured): one answers all."""
_PROBE_FRESH_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """The worker as its agent sees it."""

    session: aiohttp.ClientSession
    engine_url: str
    side_channels: tuple[SideChannel, ...] = ()
    """Where peers ask each rank what to pull; empty: the engine exchanges no KV."""
    role: WorkerRole
    keeps_kv: bool = True
    """As in `LoadReport`."""
    pod_name: str = ""
    """Empty: callers cannot check that an answer comes from the Pod that was meant."""
    token: str | None = field(default=None, repr=False)
    """What callers must send to change something; None: none is needed."""
    engine_alive: bool = False
    engine_start_seconds: float | None = None
    """From starting vLLM to its first healthy answer."""
    measure_seconds: float | None = None
    speed: SpeedCoefficients | None = None
    model_config: dict[str, Any] | None = None
    """What Fulcrum reads of the model's config.json; None until the engine has loaded it, and where it is not found."""
    warm: bool = False
    """True once the engine has come up and has been measured (or not: measuring has a budget)."""
    engine_stage: Callable[[], Stage] = lambda: Stage.IMPORTS
    """What the engine's log says of its start."""
    expert_balance: Callable[[], float | None] = lambda: None
    """What it says of its experts (`expert_balance`)."""
    missing: str | None = None
    """Which node keeps a worker on several nodes from forming; None: all are there."""
    startup_probed: bool = False
    """True once a startup probe has asked."""
    startup_told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a startup probe has been answered that the engine is up."""
    roles: Roles = Roles.LIVE
    """How this vLLM's engines get their roles."""
    role_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each change of the role."""
    drains: int = 0
    offload: OffloadReport | None = None
    """The host tier as it is set up; None without one."""
    speed_file: Path | None = None
    """Where the engine finds its measured speed."""
    sleep: EngineSleep | None = None
    """None: the engine has no sleep mode."""
    adapters: AdapterKeeper | None = None
    """None: the engine takes no LoRA adapters."""
    kv_events: KvEvents | None = None
    """What the engine said of its KV blocks; None without tiers."""
    _scraped: tuple[float, EngineMetrics] = field(default=(float("-inf"), EngineMetrics()))
    _probed: tuple[float, str | None] = field(default=(float("-inf"), None))

    def change_role(self, role: WorkerRole) -> None:
        """Takes over a new role, counting the beginnings of drains."""
        self.drains += role.draining and not self.role.draining
        self.role = role
        self.role_changed.set()

    def miss(self, node: str | None) -> None:
        """Take over which node is missing."""
        self.missing = node

    @property
    def stage(self) -> Stage:
        """What the worker does until it is ready."""
        if self.warm:
            return Stage.READY
        return self.engine_stage() if self.engine_start_seconds is None else Stage.MEASURING

    def has_started(self) -> bool:
        """Answer of the startup probe: the engine is up, and perhaps not measured yet."""
        self.startup_probed = True
        if started := self.engine_alive and self.engine_start_seconds is not None:
            self.startup_told.set()
        return started

    @property
    def awake(self) -> bool:
        """The engine has come up, and does not sleep."""
        return self.warm and self.engine_alive and (self.sleep is None or self.sleep.state == EngineSleepState.AWAKE)

    async def engine_metrics(self) -> EngineMetrics:
        """vLLM's metrics, at most 0.25 s old; unknown while the engine does not answer."""
        scraped_at, metrics = self._scraped
        if time.monotonic() - scraped_at > _FRESH_SECONDS:
            metrics = await scrape_engine(self.session, self.engine_url, timeout_seconds=SCRAPE_TIMEOUT_SECONDS)
            self._scraped = (time.monotonic(), metrics)
        return metrics

    async def not_ready_reason(self) -> str | None:
        """Why the worker cannot serve now, None when it can. Draining does not make a worker unready: it still finishes
        what it has, and peers still pull KV from it; that it gets nothing new is its role label's part."""
        if not self.engine_alive:
            return "the engine is not running"
        if not self.warm:
            return self.missing or f"the engine is starting: {self.stage}"
        probed_at, reason = self._probed
        if time.monotonic() - probed_at > _PROBE_FRESH_SECONDS:
            reason = await not_ready_reason(self.session, self.engine_url, self.side_channels)
            self._probed = (time.monotonic(), reason)
        return reason

    async def load_report(self) -> LoadReport:
        """The answer of `GET /load`."""
        metrics = await self.engine_metrics() if self.engine_alive else EngineMetrics()
        return LoadReport(
            role=self.role.role,
            role_epoch=self.role.epoch,
            ready=await self.not_ready_reason() is None,
            draining=self.role.draining,
            running=metrics.running,
            waiting=metrics.waiting,
            # vLLM does not say how long the prompts in its queue are; only an empty queue is known.
            queued_prompt_tokens=0 if metrics.waiting == 0 else None,
            kv_usage=metrics.kv_usage if self.keeps_kv else None,
            kv_held_for_peers=metrics.kv_held_for_peers if self.keeps_kv else 0.0,
            kv_capacity_tokens=metrics.kv_capacity_tokens if self.keeps_kv else None,
            keeps_kv=self.keeps_kv,
            kv_cache_dtype=metrics.kv_cache_dtype,
            speed=self.speed,
            work=metrics.work,
            model_config=self.model_config,
            max_batch=metrics.max_batch,
            max_batched_tokens=metrics.max_batched_tokens,
            transfers=metrics.transfers,
            progress=metrics.progress_at(time.monotonic()),
            offload=metrics.with_counts(self.offload) if self.offload is not None else None,
            stage=self.stage,
            flips_restart=self.roles is Roles.AT_START,
            residency=self.kv_events.residency() if self.kv_events is not None else None,
            sleep=self.sleep.state if self.sleep is not None else None,
            adapters=self.adapters.report() if self.adapters is not None else (),
            ranks=rank_reports(metrics.ranks),
        )
