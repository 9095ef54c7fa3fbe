"""Speeds that were measured badly are put right by what is seen afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.capacity.rows import PrefillRow
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers.learned_speeds import LearnedSpeeds
from fulcrum.gateway.workers.registry import KnownRank, WorkerRegistry

MEASURED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.2, prefill_b=0.0, prefill_c=1e-5, decode_a=0.006, decode_b=0.036, decode_c=0.0
    ),
    kv_capacity_tokens=10_000,
    source=SpeedSource.MEASURED,
)


def decoder(role: Role = Role.DECODE) -> KnownRank:
    registry = WorkerRegistry(Metrics())
    registry.put(WorkerRecord(name="d", role=role, host="127.0.0.1", port=1, pool="pool"))
    return registry.workers[0].ranks[0]


def load(tokens: int, seconds: float, **changes: Any) -> LoadReport:
    work = WorkCounters(
        prompts=0, prompt_tokens=0, cached_tokens=0, prefill_seconds=0.0, decode_tokens=tokens, decode_seconds=seconds
    )
    facts: dict[str, Any] = {
        "role": Role.DECODE, "role_epoch": 0, "ready": True, "draining": False, "running": 4, "waiting": 0,
        "kv_usage": 0.05, "kv_capacity_tokens": 10_000, "work": work,
    }  # fmt: skip
    return LoadReport(**facts | changes)


def learnt(speeds: LearnedSpeeds) -> SpeedCoefficients:
    speed = speeds.speed("pool", MEASURED)
    assert speed is not None
    return speed.coefficients


def test_what_is_not_measured_stays_unknown() -> None:
    speeds = LearnedSpeeds()
    speeds.learn([], {"pool": [PrefillRow(prompts=1, tokens=100, squared_tokens=1e4, seconds=0.1)]}, 1.0)
    assert speeds.speed("pool", None) is None
    assert speeds.speed("pool", MEASURED) == MEASURED


def test_prefill_follows_the_steps() -> None:
    speeds = LearnedSpeeds()
    learnt(speeds)
    for tokens in (20, 60, 100, 40, 80):
        row = PrefillRow(prompts=1, tokens=tokens, squared_tokens=tokens**2, seconds=0.05 + 0.001 * tokens)
        speeds.learn([], {"pool": [row], "another": [row]}, 1.0)
    k = learnt(speeds)
    for tokens in (20, 50, 100):
        predicted = k.prefill_a + k.prefill_b * tokens + k.prefill_c * tokens**2
        assert predicted == pytest.approx(0.05 + 0.001 * tokens, rel=0.25)
    assert (k.decode_a, k.decode_b) == (0.006, 0.036), "of decode nothing was seen"


def test_decode_follows_the_reports() -> None:
    speeds = LearnedSpeeds()
    learnt(speeds)
    worker = decoder()
    for number in range(8):
        # Four requests at a time, 50 ms a step: 80 tokens a second.
        worker.report = load(tokens=80 * number, seconds=4.0 * number)
        speeds.learn([worker], {}, float(number))
    k = learnt(speeds)
    assert k.decode_a + 4 * k.decode_b + 500 * k.decode_c == pytest.approx(0.05, rel=0.2)


@pytest.mark.parametrize(
    "changes",
    [{"running": 0}, {"running": None}, {"work": None}, {"role": Role.PREFILL}, {"role": Role.MIXED}],
    ids=str,
)
def test_nothing_is_learnt_of_what_is_not_plain_decoding(changes: dict[str, Any]) -> None:
    speeds = LearnedSpeeds()
    learnt(speeds)
    worker = decoder()
    for number in range(8):
        worker.report = load(tokens=80 * number, seconds=4.0 * number, **changes)
        speeds.learn([worker], {}, float(number))
    assert learnt(speeds) == MEASURED.coefficients


def test_an_engine_that_began_again_is_no_row() -> None:
    speeds = LearnedSpeeds()
    learnt(speeds)
    worker = decoder()
    for now, tokens in ((0.0, 1000), (3.0, 10), (100.0, 5000)):
        worker.report = load(tokens=tokens, seconds=tokens / 10)
        speeds.learn([worker], {}, now)
    assert learnt(speeds) == MEASURED.coefficients
