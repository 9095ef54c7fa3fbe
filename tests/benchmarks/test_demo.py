"""What the demo makes of measured speeds, judged by the production policy on simulated engines, and its verdicts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from demo import MANIFEST, unfit
from demo_engines import SAME, Measured, cores_each, difference, typical, with_cpu
from demo_load import (
    ANSWERS_SPLIT,
    PROMPTS_SPLIT,
    Load,
    full_step_seconds,
    load_for,
    operator_seconds_of,
    prefill_seconds,
    served,
    too_slow,
)
from demo_page import TARGET, Shown, plot, table
from demo_replay import Seen, shares
from tests.benchmarks import demo_cluster
from tests.benchmarks.demo_cluster import MEDIUM, QUICK, SLOW, SPEC

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import LatencyLimits, Outcome, Record, summarise

OPERATOR_SECONDS = operator_seconds_of(SPEC)


def load_of(speed: WorkerSpeed) -> Load:
    return load_for(speed, operator_seconds=OPERATOR_SECONDS)


@pytest.mark.parametrize("speed", [SLOW, MEDIUM, QUICK], ids=["slow", "medium", "quick"])
def test_promises_and_loads_are_what_the_engines_can_do(speed: WorkerSpeed) -> None:
    load = load_of(speed)
    assert load.slo.ttft_seconds <= 3 * prefill_seconds(speed, load.prompts.prompt_tokens_mean)
    output_tokens = round(load.answers.output_tokens_mean)
    assert load.slo.tpot_seconds <= 3 * full_step_seconds(speed, output_tokens)
    for phase, right, wrong in (
        (load.prompts, PROMPTS_SPLIT, ANSWERS_SPLIT),
        (load.answers, ANSWERS_SPLIT, PROMPTS_SPLIT),
    ):
        lengths = round(phase.prompt_tokens_mean), round(phase.output_tokens_mean)
        best, other = served(speed, right, *lengths), served(speed, wrong, *lengths)
        assert 0.4 * best <= phase.requests_per_second <= 0.7 * best
        assert other < best
    assert load.answers.requests_per_second > 1.4 * other
    assert load.seconds <= 300


@pytest.mark.parametrize(
    ("truth", "measured_share"),
    [(SLOW, 0.8), (SLOW, 1.0), (MEDIUM, 1.2), (QUICK, 1.0)],
    ids=["slow-and-taken-for-quicker", "slow", "medium-and-taken-for-slower", "quick"],
)
def test_the_operator_keeps_the_promises(truth: WorkerSpeed, measured_share: float) -> None:
    """Where the engines were measured somewhat too quick or too slow, too."""
    load = load_of(demo_cluster.scaled(truth, measured_share))
    result = demo_cluster.run(load, truth, act_seconds=load.act_seconds)
    inside, due = result.within(demo_cluster.slo(load)), result.workload.arrival_seconds
    watched = (due >= load.prompts.seconds) & (due < load.act_seconds)
    assert inside[~watched].mean() >= TARGET
    flip = next(sample.seconds for sample in result.fleet if sample.seconds >= load.act_seconds)
    before, after = inside[(due >= load.prompts.seconds) & (due < flip)], inside[due >= flip]
    assert before.mean() < after.mean()
    assert result.fleet[-1].decode > PROMPTS_SPLIT[1], "roles changed, as far as it took"


def test_without_an_operator_long_answers_are_late() -> None:
    """The load shows something: the split that was right for the first phase fails in the second."""
    load = load_of(MEDIUM)
    result = demo_cluster.run(load, MEDIUM, act_seconds=math.inf)
    inside, due = result.within(demo_cluster.slo(load)), result.workload.arrival_seconds
    assert inside[due >= load.prompts.seconds].mean() < 0.7
    assert inside[due < load.prompts.seconds].mean() >= TARGET
    assert result.flips == 0


def test_each_phase_lasts_longer_on_slower_engines() -> None:
    slow, quick = load_of(SLOW), load_of(QUICK)
    assert slow.answers.seconds > quick.answers.seconds > 60
    assert slow.prompts.seconds > quick.prompts.seconds
    assert load_for(QUICK, operator_seconds=2 * OPERATOR_SECONDS).seconds > quick.seconds


def test_promises_go_down_on_quick_engines() -> None:
    assert load_of(QUICK).slo.tpot_seconds < 0.1 * load_of(SLOW).slo.tpot_seconds


def test_engines_that_are_too_slow_are_told_with_the_limit() -> None:
    assert too_slow(SLOW) is None
    slower = demo_cluster.scaled(SLOW, 4.0)
    assert "the limit is 12 s" in str(too_slow(slower))
    assert unfit(Measured(speed=slower, rounds=2, ratio=1.0)) == too_slow(slower)


def test_rounds_that_differ_are_told_with_the_limit() -> None:
    assert unfit(Measured(speed=SLOW, rounds=2, ratio=SAME)) is None
    assert "differ by 1.60 x" in str(unfit(Measured(speed=SLOW, rounds=5, ratio=1.6)))
    assert difference(SLOW, demo_cluster.scaled(SLOW, 0.5)) == pytest.approx(2.0)
    assert difference(demo_cluster.scaled(SLOW, 0.5), SLOW) == pytest.approx(2.0)


def test_one_engine_that_was_disturbed_moves_nothing() -> None:
    """At each length the middle one counts, also where the disturbed one was slow for short prompts only."""
    disturbed = demo_cluster.speed(prefill=(9.0, 0.0), step_seconds=0.1, batch_seconds=0.9)
    found = typical([SLOW, disturbed, SLOW, demo_cluster.scaled(SLOW, 1.01)])
    assert difference(found, SLOW) == pytest.approx(1.0, abs=0.02)
    assert prefill_seconds(found, 512) == pytest.approx(prefill_seconds(SLOW, 512), rel=0.02)


@pytest.mark.parametrize(("cores", "each"), [(2, "425m"), (4, "925m"), (16, "1500m"), (1, "175m"), (0.5, "50m")])
def test_workers_get_what_the_machine_has(cores: float, each: str) -> None:
    assert cores_each(cores) == each


SLO = LatencyLimits(ttft_seconds=1.0, tpot_seconds=0.1)


def record(due_seconds: float, ttft_seconds: float, *, outcome: Outcome = Outcome.OK) -> Record:
    first = due_seconds + ttft_seconds
    return Record(
        outcome=outcome,
        detail="",
        due_seconds=due_seconds,
        sent_seconds=due_seconds,
        first_token_seconds=first,
        last_token_seconds=first + 0.05,
        end_seconds=first + 0.05,
        output_tokens=2,
    )


def shown(
    *, observed: float = 9.0, reaction: float = 9.0, then: float = 0.5, lost: int = 0, flips: int = 2
) -> tuple[Shown, Seen]:
    """Requests every second with these TTFTs: while the operator only watches, until it flips 5 s later, and then."""
    load = load_of(QUICK)
    begin, act = load.prompts.seconds, load.act_seconds
    ttft_seconds = [
        0.5 if due < begin else observed if due < act else reaction if due < act + 5 else then
        for due in np.arange(0.0, load.seconds)
    ]
    records = [
        record(due, ttft, outcome=Outcome.LOST if due < lost else Outcome.OK) for due, ttft in enumerate(ttft_seconds)
    ]
    load = Load(speed=load.speed, slo=SLO, prompts=load.prompts, answers=load.answers)
    seen = Seen(records=tuple(records), start_seconds=0.0, ratios=((0.0, "3P:1D"), (act + 5, "1P:3D")))
    report = summarise(records, offered=len(records), slo=SLO)
    return Shown(report=report, flips=flips, kv_bytes=2**20, load=load, shares=shares(seen, load)), seen


def test_only_what_the_operator_answers_for_is_judged() -> None:
    good, seen = shown()
    assert good.shares is not None
    assert good.shares.judged is not None
    assert good.shares.all is not None
    assert good.shares.before == 0.0
    assert good.shares.after == 1.0
    assert good.shares.all < TARGET <= good.shares.judged
    assert good.problems == []
    assert "0 lost, 2 flips" in good.last_line(1.0)
    assert any("not judged" in line for line in plot(seen, load_of(QUICK)))
    assert table(good).row_count > 10


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (shown(then=9.0)[0], "inside the SLO, target 90%"),
        (shown(observed=0.5, reaction=0.5)[0], "after the flip 100%, before it 100%"),
        (shown(lost=1)[0], "1 requests lost"),
        (shown(flips=0)[0], "no worker was flipped"),
    ],
)
def test_what_does_not_hold_is_told(found: Shown, problem: str) -> None:
    assert any(problem in each for each in found.problems)


def test_without_promises_only_what_is_lost_or_broken_counts() -> None:
    late, _ = shown(then=9.0)
    report, flips, kv_bytes = late.report, late.flips, late.kv_bytes
    assert Shown(report=report, flips=flips, kv_bytes=kv_bytes, load=None, shares=None).problems == []
    assert Shown(report=report, flips=flips, kv_bytes=0, load=None, shares=None).problems == ["NIXL moved no KV cache"]
    lost, _ = shown(lost=2)
    broken = Shown(report=lost.report, flips=flips, kv_bytes=kv_bytes, load=None, shares=None)
    assert broken.problems == ["2 requests lost"]
    assert "2 lost" in broken.last_line(1.0)
    assert broken.last_line(1.0).startswith("no promises of latency")


@pytest.mark.parametrize("cpu", ["100m", "925m"])
def test_a_worker_asks_for_no_more_cpu_than_it_may_use(tmp_path: Path, cpu: str) -> None:
    """The operator's own request is above a small limit, and no API server takes such a Pod."""
    document = yaml.safe_load(with_cpu(MANIFEST, tmp_path, cpu).read_text(encoding="utf-8"))
    for pool in document["spec"]["pools"]:
        for container in pool["template"]["spec"]["containers"]:
            assert container["resources"] == {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
