"""PodDisruptionBudgets say how many Pods may go."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.controllers.disruption import status_of
from fulcrum_local.controllers.resources import DISRUPTION_BUDGETS, PODS, Json

LABELS = {"app": "x"}
NOW = "2026-11-21T03:00:00Z"


def pods(ready: int, unready: int = 0, leaving: int = 0) -> list[Json]:
    def one(state: str, **metadata: Any) -> Json:
        return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": state}]}}

    return [one("True")] * ready + [one("False")] * unready + [one("True", deletionTimestamp=NOW)] * leaving


@pytest.mark.parametrize(
    ("spec", "members", "expected"),
    [
        ({"minAvailable": 1}, pods(2), (1, 2, 1, 2)),
        ({"minAvailable": 1}, pods(1, unready=1), (0, 1, 1, 2)),
        ({"minAvailable": "50%"}, pods(3), (1, 3, 2, 3)),
        ({"maxUnavailable": 1}, pods(3), (1, 3, 2, 3)),
        ({"maxUnavailable": 1}, pods(2, leaving=1), (0, 2, 2, 3)),
        ({"maxUnavailable": 0}, pods(3), (0, 3, 3, 3)),
        ({"minAvailable": 0}, [], (0, 0, 0, 0)),
    ],
)
def test_the_arithmetic(spec: Json, members: list[Json], expected: tuple[int, int, int, int]) -> None:
    status = status_of({"metadata": {"generation": 3}, "spec": spec}, members, NOW)
    fields = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    assert tuple(status[field] for field in fields) == expected
    assert status["observedGeneration"] == 3
    (condition,) = status["conditions"]
    assert condition["status"] == ("True" if expected[0] else "False")


async def allowed(world: Any, count: int) -> bool:
    found = await world.get(DISRUPTION_BUDGETS, "budget")
    return bool((found.get("status") or {}).get("disruptionsAllowed") == count)


@pytest.mark.integration
async def test_the_status_follows_the_pods(world: Any) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": LABELS}}
    await world.create(DISRUPTION_BUDGETS, "budget", {"spec": spec})
    for name in ("a", "b", "c"):
        created = await world.create(PODS, name, {"spec": {"containers": [{"name": "c", "image": "i"}]}}, labels=LABELS)
        await world.set_ready(created)
    await world.until(lambda: allowed(world, 2))
    await world.delete(PODS, "a")
    await world.until(lambda: allowed(world, 1))
    await world.patch(DISRUPTION_BUDGETS, "budget", {"spec": {"minAvailable": 2}})
    await world.until(lambda: allowed(world, 0))
