"""Failures of one cluster: few events, short messages, and few writes at a time, however many workers it has."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.apply import WRITES_AT_ONCE, Applier
from fulcrum.controller.children import Owner
from fulcrum.controller.installation import Installation
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.reporting import news_of_failures
from fulcrum.controller.tick import MOST_FAILURES, Failure, Memory, summary_of
from fulcrum.rollout import CreateWorker

WORKERS = 500
POOLS = [{"name": "p", "accelerator": "cpu", "workers": {"max": WORKERS}}]


def failures(count: int, text: str = "c-p-{0}: timed out") -> list[Failure]:
    return [Failure(message=text.format(number)) for number in range(count)]


def test_failures_that_differ_by_figures_are_one_event_once() -> None:
    memory = Memory()
    assert len(news_of_failures(failures(WORKERS), memory)) == 1
    assert news_of_failures(failures(WORKERS), memory) == []
    assert len(news_of_failures([*failures(WORKERS), *failures(1, "quota")], memory)) == 1


def test_failures_of_many_kinds_are_told_up_to_a_bound() -> None:
    kinds = [Failure(message="x" * number) for number in range(1, WORKERS)]
    assert len(news_of_failures(kinds, Memory())) == MOST_FAILURES
    said = summary_of(kinds)
    assert said.count("; ") == MOST_FAILURES
    assert said.endswith(f"and {len(kinds) - MOST_FAILURES} more")
    assert summary_of(failures(2)) == "c-p-0: timed out; c-p-1: timed out"


async def test_a_cluster_of_many_workers_takes_few_turns_of_the_api_server_at_a_time() -> None:
    most = under_way = made = 0

    class Slow:
        async def create(self, _: Any, manifest: dict[str, Any]) -> dict[str, Any]:
            nonlocal most, under_way, made
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            made += 1
            return {"metadata": {"uid": manifest["metadata"]["name"]}}

    spec = msgspec.convert({"model": {"name": "m"}, "pools": POOLS}, InferenceClusterSpec)
    applier = Applier(
        Slow(),  # type: ignore[arg-type]
        Metrics(),
        Owner(name="c", namespace="ns", uid="u"),
        spec,
        images={},
        installation=Installation(),
        token_fingerprint=None,
    )
    actions = [
        CreateWorker(name=f"c-p-{number}", reason=Reason.WORKERS_STARTING, pool="p", ordinal=number, role=Role.MIXED)
        for number in range(WORKERS)
    ]
    async with asyncio.timeout(deadline_seconds(60)):
        outcome = await applier.carry_out(actions, now=datetime.now(UTC), changed=lambda _: None)
    assert len(outcome.done) == made == WORKERS
    assert 2 <= most <= WRITES_AT_ONCE
