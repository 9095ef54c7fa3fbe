"""One play of a future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.rehearsal.worlds import CLUSTER, SLO, learnt, make_stage, split, two_pools, workers
from tests.simulation.worlds import make_workload, poisson

from fulcrum.api.names import Role, worker_name
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.decide import ObservedWorker, WorkerPhase
from fulcrum.decide.assign import roles_after
from fulcrum.decide.split import moves_between
from fulcrum.decide.tuning import TUNING
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal import play as module
from fulcrum.rehearsal.future import Future
from fulcrum.rehearsal.play import Margins, Stood, flips, play
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.result import Result
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload


def future_of(load: Workload, *, changes_at: float = 0.0, scored: np.ndarray | None = None) -> Future:
    scored = load.arrival_seconds >= changes_at if scored is None else scored
    return Future(
        load=load, changes_at=changes_at, scored=scored, seen_seconds=load.arrival_seconds[scored],
        known=np.zeros(len(load), dtype=np.bool_), known_inside=np.zeros(0, dtype=np.bool_),
    )  # fmt: skip


def random_layout(random: np.random.Generator, total: int) -> Layout:
    """Some workers of the one pool mixed, at times, and each role there at least once."""
    prefill = int(random.integers(1, total))
    mixed = int(random.integers(0, total - prefill)) if random.random() < 0.4 else 0
    return Layout.of(prefill={"p": prefill}, decode={"p": total - prefill - mixed}, mixed={"p": mixed})


@pytest.mark.parametrize("admission", [AdmissionPolicy.OFF, AdmissionPolicy.PREDICTIVE])
@pytest.mark.parametrize("seed", range(6))
def test_a_play_is_given_up_when_more_are_late_than_can_be_spared(seed: int, admission: AdmissionPolicy) -> None:
    random = np.random.default_rng(seed)
    total = int(random.integers(2, 7))
    stage = make_stage(random_layout(random, total), admission=admission)
    layout = random_layout(random, total)
    load = poisson(rate=3.0 * total, count=90, prompt=2500, output=30, seed=seed)
    future = future_of(load, changes_at=0.3 * load.duration_seconds, scored=random.random(90) < 0.7)
    whole = play(stage, future, layout, spare=len(load))
    assert whole is not None
    late = int((~whole & future.scored).sum())
    assert late > 0
    exact = play(stage, future, layout, spare=late)
    assert exact is not None
    np.testing.assert_array_equal(exact, whole)
    assert play(stage, future, layout, spare=late - 1) is None
    assert play(stage, future, layout, spare=late - 0.5) is None


def test_a_layout_that_stays_serves_as_one_that_always_stood() -> None:
    load = poisson(rate=5.0, count=150, prompt=2500, output=30, seed=8)
    always = simulate(load, CLUSTER, Fixed(workers(split(2, 2))), slo=SLO).within(SLO)
    assert 0.2 < always.mean() < 0.98
    found = play(make_stage(split(2, 2)), future_of(load, changes_at=10.0), split(2, 2), spare=150)
    assert found is not None
    np.testing.assert_array_equal(found, always)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """The results of all plays."""
    results: list[Result] = []

    def noted(*args: Any, **kwargs: Any) -> Result:
        results.append(simulate(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr(module, "simulate", noted)
    return results


def test_the_layout_changes_at_the_tick_after_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    results = recorded(monkeypatch)
    load = poisson(rate=1.0, count=60, prompt=500, output=20, seed=9)
    play(make_stage(split(1, 4)), future_of(load, changes_at=23.5), split(3, 2), spare=60)
    (result,) = results
    assert result.flips == 2
    changes = [(sample.seconds, sample.prefill, sample.decode) for sample in result.fleet]
    assert changes[0] == (0.0, 1, 4)
    assert changes[-1] == (pytest.approx(23.5 + TUNING.tick_seconds + CLUSTER.flip_seconds), 3, 2)
    before = load.arrival_seconds < 23.5
    stood = simulate(load, CLUSTER, Fixed(workers(split(1, 4))), slo=SLO)
    ended = before & (stood.end_seconds < 23.5)
    assert 5 < ended.sum() < len(load)
    np.testing.assert_array_equal(result.end_seconds[ended], stood.end_seconds[ended])


def test_the_past_is_played_under_what_stood_then(monkeypatch: pytest.MonkeyPatch) -> None:
    results = recorded(monkeypatch)
    load = poisson(rate=1.0, count=60, prompt=500, output=20, seed=9)
    stood = Stood(split(2, 3), 50.0), Stood(split(4, 1), 12.5)
    play(make_stage(split(1, 4), stood=stood), future_of(load, changes_at=40.0), split(3, 2), spare=60)
    changes = [(sample.seconds, sample.prefill, sample.decode) for sample in results[0].fleet]
    seen_at = [at + CLUSTER.flip_seconds for at in (27.5, 40.0 + TUNING.tick_seconds)]
    assert changes[0] == (0.0, 4, 1), "what stood before that ended before the past that is played"
    assert [each for each in changes if each[1:] == (1, 4)] == [(pytest.approx(seen_at[0]), 1, 4)]
    assert changes[-1] == (pytest.approx(seen_at[1]), 3, 2)


def test_of_other_workers_nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    results = recorded(monkeypatch)
    load = poisson(rate=1.0, count=60, prompt=500, output=20, seed=9)
    stood = Stood(split(2, 3), 30.0), Stood(split(2, 1), 20.0), Stood(split(3, 2), 10.0)
    play(make_stage(split(1, 4), stood=stood), future_of(load, changes_at=40.0), split(1, 4), spare=60)
    changes = [(sample.seconds, sample.prefill, sample.decode) for sample in results[0].fleet]
    assert changes[0] == (0.0, 3, 2)
    assert changes[-1] == (pytest.approx(30.0 + CLUSTER.flip_seconds), 1, 4)


def test_margins_are_put_when_the_layout_changes() -> None:
    """Where predictions were three times too short, a gateway lets fewer requests in than one that knows nothing."""
    load = poisson(rate=3.0, count=200, prompt=3000, output=20, seed=10)
    future, stage = future_of(load, changes_at=15.0), make_stage(split(2, 2), admission=AdmissionPolicy.PREDICTIVE)
    trusting, burnt = (
        play(replace(stage, margins=margins), future, split(2, 2), spare=200) for margins in ((), learnt(3.0))
    )
    assert trusting is not None
    assert burnt is not None
    before = load.arrival_seconds < 10.0
    np.testing.assert_array_equal(trusting[before], burnt[before])
    assert not np.array_equal(trusting, burnt)


def test_each_gateway_has_its_own_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways: list[Any] = []
    put = Margins.put

    def noted(self: Margins, gateway: Any) -> None:
        put(self, gateway)
        gateways.append((gateway, Margins.of(gateway)))

    monkeypatch.setattr(Margins, "put", noted)
    margins = learnt(1.5, 2.5)
    cluster = replace(CLUSTER, gateways=3)
    load = poisson(rate=1.0, count=10, prompt=500, output=20, seed=9)
    stage = make_stage(split(1, 1), cluster=cluster, margins=margins)
    assert play(stage, future_of(load, changes_at=4.0), split(1, 1), spare=10) is not None
    assert [found for _, found in gateways] == list(margins)
    assert len({id(gateway) for gateway, _ in gateways}) == 2


class Flipping(Fixed):
    """Becomes another layout at once."""

    flipped: Sequence[str] = ()

    def __init__(self, before: Layout, after: Layout) -> None:
        super().__init__(workers(before))
        self.after, self.actions, self.made = after, 0, Layout()

    def on_tick(self, view: View) -> TickResult:
        if view.now == 0.0:
            actions = flips(view, self.after)
            self.actions, self.flipped = len(actions), [action.name for action in actions]
            return TickResult(actions=actions, again_seconds=1.0)
        self.made = Layout().plus((pod.pool.name, pod.role, 1) for pod in view.pods)
        return TickResult()


@pytest.mark.parametrize("seed", range(25))
def test_flips_make_the_layout_with_the_fewest_changes(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = {"a": int(random.integers(0, 6)), "b": int(random.integers(1, 6))}
    before, after = (
        Layout().plus(
            (pool, role, int(count))
            for pool, size in sizes.items()
            for role, count in zip(
                (Role.PREFILL, Role.DECODE, Role.MIXED), random.multinomial(size, [1 / 3] * 3), strict=True
            )
        )
        for _ in range(2)
    )
    policy = Flipping(before, after)
    simulate(make_workload([(2.0, 10, 2)]), two_pools(1.0, 2.0), policy, slo=SLO, tail_seconds=1.0)
    assert policy.made == after
    fewest = sum(
        max(0, after.in_pool(pool).get(role, 0) - before.in_pool(pool).get(role, 0))
        for pool in sizes
        for role in (Role.PREFILL, Role.DECODE, Role.MIXED)
    )
    assert policy.actions == fewest


def test_flips_take_the_workers_that_a_plan_takes() -> None:
    """Of workers that are alike the last ones, by their numbers and not by their names."""
    before, after = split(12, 2), split(10, 4)
    policy = Flipping(before, after)
    simulate(make_workload([(2.0, 10, 2)]), CLUSTER, policy, slo=SLO, tail_seconds=1.0)
    roles = [role for _, role in workers(before)]
    pods = [
        ObservedWorker(
            name=worker_name("sim", "p", ordinal), uid=f"u{ordinal}", pool="p", ordinal=ordinal, role=role,
            role_epoch=0, spec_hash="", phase=WorkerPhase.RUNNING, ready=True, deleting=False,
        )
        for ordinal, role in enumerate(roles)
    ]  # fmt: skip
    planned = roles_after(pods, moves_between(["p"], before, after), frozenset(pod.name for pod in pods))
    assert policy.flipped == [pod.name for pod in reversed(pods) if planned[pod.name] is not pod.role]
