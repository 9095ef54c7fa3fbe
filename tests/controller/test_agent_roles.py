"""Who is asked before a plan is made, so that what waits for the answers is not held up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from fulcrum.api.names import Role
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport
from fulcrum.controller.agent_roles import UNSURE_AT_ONCE, AgentRoles
from fulcrum.controller.tick import Memory
from fulcrum.decide import ObservedWorker, WorkerPhase

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 500
KNOWS = LoadReport(role=Role.PREFILL, role_epoch=1, ready=True, draining=False)


class FakeAgents:
    """Agents that all answer the same."""

    def __init__(self, answer: LoadReport | None) -> None:
        self.answer = answer
        self.asked: list[set[str]] = []

    async def loads(self, workers: Mapping[str, AgentAddress]) -> dict[str, LoadReport | None]:
        self.asked.append(set(workers))
        return dict.fromkeys(workers, self.answer)


def worker(number: int, role: Role = Role.PREFILL, *, ready: bool = True, known: bool = False) -> ObservedWorker:
    return ObservedWorker(
        name=f"c-p-{number}", uid=f"u{number}", pool="p", ordinal=number, role=role, role_epoch=1, spec_hash="h",
        phase=WorkerPhase.RUNNING, ready=ready, deleting=False, pod_ip="10.0.0.1", role_acknowledged=known,
        unready_since=None if ready else NOW - timedelta(days=1),
    )  # fmt: skip


async def ask(agents: FakeAgents, workers: list[ObservedWorker], memory: Memory) -> dict[str, LoadReport | None]:
    return await AgentRoles(agents).fresh_loads(workers, 60.0, memory, NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [None, KNOWS])
async def test_agents_that_only_may_not_know_their_role_hold_up_little(answer: LoadReport | None) -> None:
    agents, memory = FakeAgents(answer), Memory()
    for _ in range(200):
        sure = {uid for uid, _, _ in memory.acknowledged}
        await ask(agents, [worker(n, known=f"u{n}" in sure) for n in range(MANY)], memory)
    assert max(map(len, agents.asked)) == UNSURE_AT_ONCE
    assert len(set.union(*agents.asked)) == MANY, "each has its turn"
    assert len(memory.acknowledged) == (0 if answer is None else MANY)


async def test_all_are_asked_whose_drain_or_start_rests_on_the_answer() -> None:
    agents = FakeAgents(None)
    workers = [worker(n) for n in range(MANY)]
    resting = [worker(MANY + n, Role.DRAINING) for n in range(100)] + [worker(700 + n, ready=False) for n in range(100)]
    loads = await ask(agents, [*workers, *resting, worker(900, known=True)], Memory())
    assert {each.name for each in resting} <= loads.keys()
    assert len(loads) == len(resting) + UNSURE_AT_ONCE
    assert "c-p-900" not in loads
