"""What agents are asked and told within a tick: the load a decision rests on, and their roles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, Final

from fulcrum.api.names import Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport, SleepRequest
from fulcrum.controller.tick import Memory, Tick
from fulcrum.decide import ObservedWorker
from fulcrum.rollout import TellSleep, is_late
from fulcrum.telemetry import Agents

UNSURE_AT_ONCE: Final = 64
"""Workers that are asked in one tick whether they know their role. Nothing rests on the answer in this tick, and flips
wait for it: where no agent can be reached, all of thousands would be asked each time."""


class AgentRoles:
    """Asks agents which role they know, and tells them the one that they are to have."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._background: set[asyncio.Task[object]] = set()

    async def fresh_loads(
        self, workers: Sequence[ObservedWorker], start_seconds: float, memory: Memory, now: datetime
    ) -> dict[str, LoadReport | None]:
        """Return the loads by name of the workers about which a decision rests on what is so right now.

        Those are workers that drain, that have not been ready for `start_seconds`, or that are not known to know their
        role; of the latter some, by chance, where there are many. None: it did not answer.
        """
        asked, unsure = [], []
        for worker in workers:
            if worker.agent is None or worker.deleting:
                continue
            if worker.role is Role.DRAINING or is_late(worker, start_seconds, now):
                asked.append(worker)
            elif worker.ready and not worker.role_acknowledged:
                unsure.append(worker)
        asked += random.sample(unsure, UNSURE_AT_ONCE) if len(unsure) > UNSURE_AT_ONCE else unsure
        if not asked:
            return {}
        loads = await self._agents.loads({worker.name: agent for worker in asked if (agent := worker.agent)})
        for worker in asked:
            load = loads[worker.name]
            if load is not None and load.role_epoch >= worker.role_epoch:
                memory.acknowledged.add((worker.uid, worker.restarts, worker.role_epoch))
        living = {worker.uid for worker in workers}
        memory.acknowledged = {entry for entry in memory.acknowledged if entry[0] in living}
        return loads

    def tell_later(self, tick: Tick, worker: ObservedWorker, role: Role, epoch: int) -> None:
        """Tell an agent its role in the background; if it does not hear, a later tick repeats it."""

        async def tell(agent: AgentAddress) -> None:
            token = tick.seen.token.text
            if await self._agents.tell_role(agent, role, epoch, pod_name=worker.name, token=token):
                tick.memory.acknowledged.add((worker.uid, worker.restarts, epoch))

        if worker.agent is not None:
            self._begin(tell(worker.agent), worker)

    def tell_sleep_later(self, tick: Tick, worker: ObservedWorker, action: TellSleep) -> None:
        """Have an agent put its engine to sleep, or wake it up, in the background; a later tick repeats it."""
        if worker.agent is not None:
            request = SleepRequest(level=action.level, role_epoch=action.epoch)
            telling = self._agents.tell_sleep(worker.agent, request, pod_name=worker.name, token=tick.seen.token.text)
            self._begin(telling, worker)

    def _begin(self, telling: Coroutine[Any, Any, object], worker: ObservedWorker) -> None:
        task = asyncio.create_task(telling, name=f"tell-{worker.name}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
