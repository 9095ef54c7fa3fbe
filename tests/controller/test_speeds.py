"""What is learnt about the speed of a cluster's workers from their reports."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.machine import cost_ratio

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import DecodePoint, LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.capacity.pace import slower_than_peers
from fulcrum.capacity.profile import Profile
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.controller.speeds import ROW_SECONDS, PoolSpeeds
from fulcrum.decide import ObservedWorker, WorkerPhase
from fulcrum.rollout import worker_revision

MEASURED = SpeedCoefficients(prefill_a=0.01, prefill_b=1e-4, prefill_c=0.0, decode_a=0.01, decode_b=1e-4, decode_c=0.0)


def spec_of(accelerator: str = "cpu", model: str = "m", **engine: Any) -> InferenceClusterSpec:
    document = {
        "model": {"name": model},
        "pools": [{"name": "p", "accelerator": accelerator, "workers": {"max": 2000}}],
        "engine": engine,
    }
    return msgspec.convert(document, InferenceClusterSpec)


def worker(ordinal: int, spec: InferenceClusterSpec) -> ObservedWorker:
    return ObservedWorker(
        name=f"c-p-{ordinal}",
        uid=f"u{ordinal}",
        pool="p",
        ordinal=ordinal,
        role=Role.PREFILL,
        role_epoch=0,
        spec_hash=worker_revision(cluster="c", spec=spec, pool=spec.pools[0]),
        phase=WorkerPhase.RUNNING,
        ready=True,
        deleting=False,
    )


def report(*, speed: SpeedCoefficients | None = MEASURED, prompts: int = 0, seconds: float = 0.0) -> LoadReport:
    """A worker that has prefilled `prompts` of 1,000 tokens, half of them from its cache, in `seconds`."""
    work = WorkCounters(
        prompts=prompts,
        prompt_tokens=1000 * prompts,
        cached_tokens=500 * prompts,
        prefill_seconds=seconds,
        decode_tokens=0,
        decode_seconds=0.0,
    )
    return LoadReport(
        role=Role.PREFILL,
        role_epoch=0,
        ready=True,
        draining=False,
        running=0,
        waiting=0,
        kv_capacity_tokens=50_000,
        speed=speed,
        work=work,
    )


def learn(
    speeds: PoolSpeeds,
    spec: InferenceClusterSpec,
    workers: tuple[ObservedWorker, ...],
    at: float,
    load: LoadReport | None,
) -> None:
    loads = dict.fromkeys((each.name for each in workers), load)
    speeds.learn(cluster="c", spec=spec, workers=workers, loads=loads, at=dict.fromkeys(loads, at), isl_cv2=0.0)


def test_a_known_gpu_has_a_speed_before_anybody_has_measured_it() -> None:
    speeds, spec = PoolSpeeds(), spec_of("H100-SXM-80GB", "meta-llama/Llama-3.1-8B-Instruct")
    learn(speeds, spec, (), 0.0, None)
    assert speeds.speeds()["p"].source is SpeedSource.ROOFLINE
    workers = (worker(0, spec),)
    learn(speeds, spec, workers, 2.0, report())
    found = speeds.speeds()["p"]
    assert (found.source, found.kv_capacity_tokens) == (SpeedSource.MEASURED, 50_000)
    assert found.coefficients.prefill_b == pytest.approx(1e-4)


def profile(model: str = "m", accelerator: str = "cpu", **coefficients: float) -> Profile:
    found = msgspec.structs.replace(MEASURED, prefill_b=3e-4, **coefficients)
    return Profile(model=model, accelerator=accelerator, kv_capacity_tokens=70_000, coefficients=found)


def learn_with(
    speeds: PoolSpeeds, spec: InferenceClusterSpec, profiles: dict[str, Profile], load: LoadReport | None, at: float
) -> WorkerSpeed | None:
    who = worker(0, spec)
    speeds.learn(
        cluster="c",
        spec=spec,
        workers=(who,),
        loads={who.name: load},
        at={who.name: at},
        isl_cv2=0.0,
        profiles=profiles,
    )
    return speeds.speeds().get("p")


def test_a_profile_is_known_from_the_first_tick_and_gives_way_to_what_is_measured() -> None:
    speeds, spec = PoolSpeeds(), spec_of()
    speeds.expect(cluster="c", spec=spec, profiles={"p": profile()})
    first = speeds.speeds()["p"]
    assert (first.source, first.kv_capacity_tokens) == (SpeedSource.PROFILE, 70_000)
    assert first.coefficients.prefill_b == pytest.approx(3e-4)
    measured = learn_with(speeds, spec, {"p": profile()}, report(), 0.0)
    assert measured is not None
    assert (measured.source, measured.coefficients.prefill_b) == (SpeedSource.MEASURED, pytest.approx(1e-4))
    kept = learn_with(speeds, spec, {"p": profile(prefill_a=0.5)}, None, 2.0)
    assert kept == measured, "no worker reports right now"


def test_a_profile_may_come_later_change_and_go() -> None:
    speeds, spec = PoolSpeeds(), spec_of("H100-SXM-80GB", "meta-llama/Llama-3.1-8B-Instruct")
    of_h100 = profile("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB")
    roofline = learn_with(speeds, spec, {}, None, 0.0)
    came = learn_with(speeds, spec, {"p": of_h100}, None, 2.0)
    assert roofline is not None
    assert came is not None
    assert came.source is SpeedSource.PROFILE
    assert came.transfer_seconds(1000) == roofline.transfer_seconds(1000) > 0, "profiles seldom know transfers"
    slower = msgspec.structs.replace(of_h100, coefficients=msgspec.structs.replace(MEASURED, prefill_b=9e-4))
    changed = learn_with(speeds, spec, {"p": slower}, None, 4.0)
    assert changed is not None
    assert changed.coefficients.prefill_b == pytest.approx(9e-4)
    assert learn_with(speeds, spec, {}, None, 6.0) == roofline
    on_cpu, cpu = PoolSpeeds(), spec_of()
    assert learn_with(on_cpu, cpu, {"p": profile()}, None, 0.0) is not None
    assert learn_with(on_cpu, cpu, {}, None, 2.0) is None


def test_what_is_learnt_stays_while_the_profile_does() -> None:
    """Workers that were not measured at their start: 500 tokens take 0.2 s, and the profile says 0.16."""
    speeds, spec = PoolSpeeds(), spec_of()
    for step in range(40):
        load = report(speed=None, prompts=10 * step, seconds=2.0 * step)
        found = learn_with(speeds, spec, {"p": profile()}, load, step * ROW_SECONDS)
    assert found is not None
    assert found.prefill_seconds(500, 500**2) == pytest.approx(0.2, rel=0.1)


def test_nothing_is_known_of_a_cpu_until_it_was_measured() -> None:
    speeds, spec = PoolSpeeds(), spec_of()
    learn(speeds, spec, (worker(0, spec),), 0.0, report(speed=None))
    assert speeds.speeds() == {}


def test_it_follows_what_workers_do() -> None:
    speeds, spec = PoolSpeeds(), spec_of()
    workers = (worker(0, spec),)
    for step in range(40):
        # 500 tokens take 0.2 s where 0.06 were measured.
        learn(speeds, spec, workers, step * ROW_SECONDS, report(prompts=10 * step, seconds=2.0 * step))
    assert speeds.speeds()["p"].prefill_seconds(500, 500**2) == pytest.approx(0.2, rel=0.1)
    assert speeds.prefix_hit == pytest.approx(0.5)


def test_short_answers_with_pauses_say_how_fast_a_decode_worker_is() -> None:
    """Answers of three tokens, 1.3 a second; measured while all engines started a step took 1.6 times as long."""
    true_step, measured_step = 0.19, 0.31
    speeds, spec = PoolSpeeds(), spec_of()
    at_start = msgspec.structs.replace(MEASURED, decode_a=measured_step, decode_b=0.0)
    who = dataclasses.replace(worker(0, spec), role=Role.DECODE)
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / 1.3, size=200))

    def decoding(now: float) -> LoadReport:
        """Its first token is the prompt's, one step after it came; two more follow, a step each."""
        first = arrivals[arrivals + true_step <= now] + true_step
        tokens = int(np.clip((now - first) // true_step, 0, 2).sum())
        running = int(((arrivals <= now) & (now < arrivals + 3 * true_step)).sum())
        work = WorkCounters(
            prompts=len(first),
            prompt_tokens=len(first),
            cached_tokens=0,
            prefill_seconds=len(first) * true_step,
            decode_tokens=tokens,
            decode_seconds=tokens * true_step,
            computed_tokens=0,
        )
        changes = {"role": Role.DECODE, "running": running, "kv_usage": running * 200 / 50_000, "work": work}
        return msgspec.structs.replace(report(speed=at_start), **changes)

    for second in range(0, 61, 2):
        learn(speeds, spec, (who,), float(second), decoding(float(second)))
    assert speeds.speeds()["p"].decode_step_seconds(1.5, 300) == pytest.approx(true_step, rel=0.15)


def test_a_worker_that_is_slower_than_its_pool_is_told_by_its_work_and_before_by_its_start() -> None:
    """Four workers take three times what was measured; one of them twice that again, which its start did not show."""
    speeds, spec = PoolSpeeds(), spec_of()
    workers = tuple(worker(ordinal, spec) for ordinal in range(4))

    def reports(step: int) -> dict[str, LoadReport | None]:
        slow = msgspec.structs.replace(MEASURED, prefill_b=2e-4, decode_a=0.02)
        return {
            each.name: report(
                prompts=10 * step,
                seconds=(4.0 if each.ordinal == 3 else 2.0) * step,
                speed=slow if each.ordinal == 0 else MEASURED,
            )
            for each in workers
        }

    def learn_all(step: int) -> dict[str, float]:
        at = {each.name: step * ROW_SECONDS for each in workers}
        speeds.learn(cluster="c", spec=spec, workers=workers, loads=reports(step), at=at, isl_cv2=0.0)
        return speeds.paces()

    at_start = learn_all(0)
    assert slower_than_peers(at_start, ()).keys() == {"u0"}
    for step in range(1, 40):
        paces = learn_all(step)
    assert slower_than_peers(paces, ()).keys() == {"u3"}
    assert slower_than_peers(paces, ())["u3"] == pytest.approx(2.0, rel=0.1)
    learn(speeds, spec, workers[:1], 1000.0, report())
    assert speeds.paces().keys() == {"u0"}, "of workers that are gone nothing is kept"


def test_a_curve_without_sense_is_left_out_and_costs_nobody_their_pace() -> None:
    speeds, spec = PoolSpeeds(), spec_of()
    workers = tuple(worker(ordinal, spec) for ordinal in range(3))
    twice = (DecodePoint(batch=16.0, seconds=0.01, seconds_per_token=0.0),) * 2
    learn(speeds, spec, workers, 0.0, report(speed=msgspec.structs.replace(MEASURED, decode_curve=twice)))
    assert speeds.paces() == dict.fromkeys(("u0", "u1", "u2"), 1.0)


def test_another_revision_is_another_worker() -> None:
    speeds, spec = PoolSpeeds(), spec_of()
    workers = (worker(0, spec),)
    for step in range(40):
        learn(speeds, spec, workers, step * ROW_SECONDS, report(prompts=10 * step, seconds=2.0 * step))
    other = spec_of(args=["--enforce-eager"])
    learn(speeds, other, workers, 1e3, report(prompts=1000, seconds=1.0))
    assert speeds.speeds() == {}
    fresh = (dataclasses.replace(worker(0, other), uid="other"),)
    learn(speeds, other, fresh, 1e3, report())
    assert speeds.speeds()["p"].prefill_seconds(500, 500**2) == pytest.approx(0.06)


def test_reports_of_twice_the_workers_cost_twice_as_much() -> None:
    def learning(count: int) -> Callable[[], None]:
        speeds, spec, turns = PoolSpeeds(), spec_of(), itertools.count(1)
        workers = tuple(worker(n, spec) for n in range(count))
        learn(speeds, spec, workers, 0.0, report())

        def learn_once() -> None:
            turn = next(turns)
            learn(speeds, spec, workers, turn * ROW_SECONDS, report(prompts=10 * turn, seconds=0.6 * turn))

        return learn_once

    assert cost_ratio(learning(500), learning(1000)) < 3
