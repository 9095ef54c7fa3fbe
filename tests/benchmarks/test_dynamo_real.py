"""What the comparison with the real Dynamo hands to it: the same requests, at the same speed."""

from __future__ import annotations

import json
from pathlib import Path

import dynamo_real
import numpy as np
import pytest
from contests.rivals.round_robin import RoundRobin
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload

from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.traffic import load_trace
from fulcrum.simulation.workload import Workload

SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)
CHAT = LogNormalLengths(prompt_mean=1150, output_mean=210, prompt_spread=0.9, output_spread=0.8)
LOAD = make_workload([(0.0, 700, 20), (0.5, 9000, 1), (1.25, 40, 300)])


def test_the_trace_holds_the_same_requests(tmp_path: Path) -> None:
    dynamo_real.write_trace(LOAD, tmp_path / "trace.jsonl")
    again = Workload.of(load_trace(tmp_path / "trace.jsonl"))
    assert again.arrival_seconds.tolist() == LOAD.arrival_seconds.tolist()
    assert again.prompt_tokens.tolist() == LOAD.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == LOAD.output_tokens.tolist()
    assert again.prefix_ids is not None
    blocks = [each for ids in again.prefix_ids for each in ids]
    assert len(blocks) == len(set(blocks)) == 2 + 18 + 1, "nothing is shared"


def test_shared_prefixes_stay_shared(tmp_path: Path) -> None:
    load = make_workload([(0.0, 1024, 5), (1.0, 1500, 5)], prefix_ids=((7, 8), (7, 8)))
    dynamo_real.write_trace(load, tmp_path / "trace.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [line["hash_ids"] for line in lines] == [[7, 8], [7, 8, 9]]


def test_one_speed_for_both_keeps_the_work_of_all_prompts() -> None:
    same = dynamo_real.same_speed(SPEED, LOAD)
    most = SPEED.max_batched_tokens
    prompts = [int(each) for each in LOAD.prompt_tokens]
    steps = sum(-(-each // most) for each in prompts)
    k = SPEED.coefficients
    before = steps * k.prefill_a + sum(k.prefill_b * each + k.prefill_c * each**2 for each in prompts)
    after = sum(same.prefill_seconds(each, each**2) for each in prompts)
    assert after == pytest.approx(before, rel=0.05)
    assert same.decode_step_seconds(8, 4000) == SPEED.decode_step_seconds(8, 4000)


def test_the_profile_has_the_steps_of_the_speed(tmp_path: Path) -> None:
    speed = dynamo_real.same_speed(SPEED, LOAD)
    dynamo_real.write_profile(speed, tmp_path / "profile.npz")
    profile = np.load(tmp_path / "profile.npz")
    assert np.interp(3000, profile["prefill_isl"], profile["prefill_ttft_ms"]) == pytest.approx(
        1e3 * speed.prefill_seconds(3000, 0), rel=1e-6
    )
    for batch, context in ((1, 500), (20, 1200), (100, 3000)):
        at_context = [np.interp(context, profile["decode_context_length"], row) for row in profile["decode_itl"]]
        step = np.interp(batch * context, profile["decode_active_kv_tokens"], at_context)
        assert step == pytest.approx(1e3 * speed.decode_step_seconds(batch, batch * context), rel=0.02)


@pytest.mark.parametrize(("aggregated", "mode"), [(True, "agg"), (False, "disagg")])
def test_the_planner_is_told_promises_and_budget(aggregated: bool, mode: str) -> None:
    config = dynamo_real.planner_config(SLO, aggregated=aggregated, rules=("load",), least=8, most=8)
    told = {name: config[name] for name in ("mode", "ttft_ms", "itl_ms", "min_gpu_budget", "max_gpu_budget")}
    assert told == {"mode": mode, "ttft_ms": 500.0, "itl_ms": 50.0, "min_gpu_budget": 8, "max_gpu_budget": 8}
    assert (config["enable_load_scaling"], config["enable_throughput_scaling"]) == (True, False)


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\necho no module named dynamo >&2\nexit 3\n")
    python.chmod(0o755)
    job = dynamo_real.job_of(LOAD, SPEED, SLO, start_seconds=0.0, folder=tmp_path)
    with pytest.raises(SystemExit, match="ended with 3:\nno module named dynamo"):
        dynamo_real.run(python, job)


INSTALLED = dynamo_real.ROOT / "build" / "dynamo"
REAL = INSTALLED / "bin" / "python"


@pytest.mark.skipif(
    not (INSTALLED / ".installed").exists(), reason="the real Dynamo is not installed: python benchmarks/dynamo.py"
)
@pytest.mark.parametrize("workers", [(1, 1), (0, 2)], ids=["disaggregated", "aggregated"])
def test_the_real_dynamo_serves_the_requests(tmp_path: Path, workers: tuple[int, int]) -> None:
    speed = dynamo_real.same_speed(SPEED, LOAD)
    job = dynamo_real.job_of(LOAD, speed, SLO, start_seconds=0.0, folder=tmp_path)
    config = dynamo_real.planner_config(SLO, aggregated=not workers[0], rules=("throughput", "load"), least=2, most=2)
    job = dynamo_real.with_workers(job, *workers, planner=config)
    found = dynamo_real.run(REAL, job)
    assert found.completed == len(LOAD)
    assert 0 < found.within <= len(LOAD)
    assert found.worker_hours > 0


@pytest.mark.skipif(not (INSTALLED / ".installed").exists(), reason="the real Dynamo is not installed")
@pytest.mark.parametrize("workers", [(1, 1), (0, 2)], ids=["disaggregated", "aggregated"])
def test_engines_alone_are_as_fast_in_both_simulators(tmp_path: Path, workers: tuple[int, int]) -> None:
    load = stream(rate=constant(3), lengths=CHAT, seconds=60, seed=1)
    speed = dynamo_real.same_speed(SPEED, load)
    job = dynamo_real.job_of(load, speed, SLO, start_seconds=0.0, folder=tmp_path)
    real = dynamo_real.run(REAL, dynamo_real.with_workers(job, *workers)).within
    policy = RoundRobin(pool="p", prefill=workers[0], decode=workers[1])
    ours = int(simulate(load, make_cluster(speed), policy, slo=SLO).within(SLO).sum())
    assert 0 < real < len(load)
    assert ours / len(load) == pytest.approx(real / len(load), abs=0.02)


@pytest.mark.parametrize("workers", [(3, 3), (0, 3)], ids=["disaggregated", "aggregated"])
def test_requests_go_to_workers_in_turn(workers: tuple[int, int]) -> None:
    together = make_workload([(0.0, 4000, 20)] * 3)
    policy = RoundRobin(pool="p", prefill=workers[0], decode=workers[1])
    result = simulate(together, make_cluster(SPEED), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == 3
    assert np.ptp(result.ttft_seconds) == np.ptp(result.tpot_seconds) == 0, "none shares a worker"
