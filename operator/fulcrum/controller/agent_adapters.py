"""Tells agents which LoRA adapters their engines are to have, and says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fulcrum.api.ports import AgentAddress
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdapterStatus
from fulcrum.api.worker import AdapterSource, AdapterState, LoadReport
from fulcrum.controller.tick import Tick
from fulcrum.decide import ObservedWorker
from fulcrum.report import PlanEvent
from fulcrum.rollout import adapter_sources
from fulcrum.telemetry import Agents

RETRY_SECONDS: Final = 2.0
"""Until agents that did not hear are told again."""


class AgentAdapters:
    """Tells each ready worker once, and again after its container was started again, or where it reports others."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._background: set[asyncio.Task[None]] = set()

    def tell(self, tick: Tick, reports: Mapping[str, LoadReport]) -> float | None:
        """Tell in the background what is not known to be heard; return after which time to look again, None: never."""
        if tick.cluster.spec.adapters is None:
            return None
        wanted, told = adapter_sources(tick.cluster.spec), tick.memory.told_adapters
        living = {worker.uid for worker in tick.snapshot.workers}
        for key in [key for key in told if key[0] not in living]:
            del told[key]
        due = [
            worker
            for worker in tick.snapshot.workers
            if worker.ready
            and not worker.deleting
            and worker.agent is not None
            and (told.get((worker.uid, worker.restarts)) != wanted or _differs(reports.get(worker.name), wanted))
        ]
        for worker in due:
            told.pop((worker.uid, worker.restarts), None)
            task = asyncio.create_task(self._tell(tick, worker, wanted), name=f"adapters-{worker.name}")
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        return RETRY_SECONDS if due else None

    async def _tell(self, tick: Tick, worker: ObservedWorker, wanted: tuple[AdapterSource, ...]) -> None:
        agent: AgentAddress | None = worker.agent
        assert agent is not None
        if await self._agents.tell_adapters(agent, wanted, pod_name=worker.name, token=tick.seen.token.text):
            tick.memory.told_adapters[worker.uid, worker.restarts] = wanted


def _differs(report: LoadReport | None, wanted: tuple[AdapterSource, ...]) -> bool:
    """Whether a worker reports others than are wanted; unknown is no."""
    if report is None:
        return False
    reported = {each.key for each in report.adapters if each.state != AdapterState.LEAVING}
    return reported != {each.key for each in wanted}


def adapter_statuses(wanted: Iterable[AdapterSource], reports: Sequence[LoadReport]) -> tuple[AdapterStatus, ...]:
    """Return what ready workers have of each adapter."""
    found = []
    for adapter in wanted:
        of_it = [each for report in reports for each in report.adapters if each.key == adapter.key]
        failed = [each.message for each in of_it if each.state == AdapterState.FAILED]
        found.append(
            AdapterStatus(
                name=adapter.name,
                loaded=sum(each.state == AdapterState.LOADED for each in of_it),
                workers=len(reports),
                message=failed[0][:512] if failed else None,
            )
        )
    return tuple(found)


def adapter_events(now: Sequence[AdapterStatus] | None, last: Sequence[AdapterStatus] | None) -> list[PlanEvent]:
    """Return an event for each adapter that some worker cannot load, once for each reason."""
    before = {each.name: each.message for each in last or ()}
    return [
        PlanEvent(
            reason=Reason.ADAPTER_NOT_LOADED,
            message=f"Adapter {each.name} is loaded on {each.loaded} of {each.workers} ready workers: {each.message}.",
            subject=each.name,
            warning=True,
        )
        for each in now or ()
        if each.message is not None and each.message != before.get(each.name)
    ]
