"""What gateways know of the requests of the last minutes: all that has happened, and nothing that will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload, poisson

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.simulation.cluster import ClusterModel, FirstToken
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.result import Result
from fulcrum.simulation.seen import Seen
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

SPLIT = (("p", Role.PREFILL), ("p", Role.DECODE))


class Watched(Fixed):
    """Workers that never change, and what was seen at some times."""

    def __init__(
        self, at_seconds: Sequence[float], workers: Sequence[tuple[str, Role]], admission: AdmissionPolicy
    ) -> None:
        super().__init__(workers, admission=admission)
        self._at_seconds = list(at_seconds)
        self.seen: list[tuple[float, Seen]] = []

    def on_tick(self, view: View) -> TickResult:
        while self._at_seconds and view.now >= self._at_seconds[0]:
            self.seen.append((self._at_seconds.pop(0), view.seen(0.0)))
        return TickResult(again_seconds=self._at_seconds[0] - view.now if self._at_seconds else None)


def watch(
    load: Workload,
    at_seconds: Sequence[float],
    *,
    cluster: ClusterModel | None = None,
    workers: Sequence[tuple[str, Role]] = SPLIT,
    admission: AdmissionPolicy = AdmissionPolicy.OFF,
) -> tuple[list[tuple[float, Seen]], Result]:
    policy = Watched(at_seconds, workers, admission)
    result = simulate(load, cluster or make_cluster(), policy, slo=SLO)
    assert policy.seen
    return policy.seen, result


@pytest.mark.parametrize("admission", [AdmissionPolicy.OFF, AdmissionPolicy.PREDICTIVE])
def test_what_has_ended_is_seen_as_the_result_has_it(admission: AdmissionPolicy) -> None:
    load = poisson(rate=9.0, count=150, prompt=2500, output=60, seed=4)
    seen, result = watch(load, [3.3, 9.1, 16.0], admission=admission)
    inside, outcome = result.within(SLO), result.outcome
    assert 0.05 < inside.mean() < 0.95
    for now, found in seen:
        came = load.arrival_seconds <= now
        np.testing.assert_array_equal(found.arrival_seconds, load.arrival_seconds[came])
        np.testing.assert_array_equal(found.load.prompt_tokens, load.prompt_tokens[came])
        over = result.end_seconds[came] <= now
        np.testing.assert_array_equal(found.ended, over & (outcome[came] == Outcome.SERVED))
        np.testing.assert_array_equal(found.refused, over & (outcome[came] == Outcome.REJECTED))
        np.testing.assert_array_equal(found.missed[over], ~inside[came][over])
        np.testing.assert_array_equal(found.made_tokens[found.ended], load.output_tokens[came][found.ended])
        assert not found.made_tokens[found.refused].any()
    assert seen[-1][1].ended.any()
    assert seen[-1][1].refused.any() is np.bool_(admission is not AdmissionPolicy.OFF)


def test_what_waits_is_late_once_its_promise_is_over() -> None:
    """A prompt of 18,000 tokens takes 1.05 s; the promise is 0.5 s."""
    load = make_workload([(0.0, 18_000, 40), (0.7, 100, 40)])
    seen, result = watch(load, [0.3, 0.45, 0.55, 0.9, 1.19, 1.21])
    assert 1.0 < result.ttft_seconds[0] < 1.15
    assert result.ttft_seconds[1] < SLO.ttft_seconds
    assert [found.missed.tolist() for _, found in seen] == [
        [False], [False], [True], [True, False], [True, False], [True, False],
    ]  # fmt: skip
    assert not any(found.ended.any() or found.refused.any() for _, found in seen)


def test_an_answer_that_began_in_time_is_not_late_while_it_runs() -> None:
    load = make_workload([(0.0, 500, 200)])
    ((_, found),), result = watch(load, [1.5])
    assert result.end_seconds[0] > 1.5 > SLO.ttft_seconds
    assert (found.ended.tolist(), found.missed.tolist()) == ([False], [False])


@pytest.mark.parametrize("workers", [SPLIT, (("p", Role.MIXED),)], ids=["two legs", "whole"])
def test_an_answer_is_as_long_as_tokens_came(workers: Sequence[tuple[str, Role]]) -> None:
    """One request alone: its first token comes after prefill, and then one each 0.0101 s and a little."""
    speed = make_speed(decode=(0.01, 1e-4, 0.0))
    at = [0.1, 0.5, 0.75, 1.0, 1.7, 2.0]
    seen, result = watch(make_workload([(0.0, 500, 300)]), at, cluster=make_cluster(speed), workers=workers)
    first = float(result.ttft_seconds[0])
    assert first < at[0]
    made = [int(found.made_tokens[0]) for _, found in seen]
    assert len(made) == len(at)
    assert made == pytest.approx([1 + (now - first) / 0.0101 for now in at], abs=1.01)


@pytest.mark.parametrize(
    ("workers", "first_token", "blocks"),
    [
        (SPLIT, FirstToken.DECODE, 400),
        (SPLIT, FirstToken.PREFILL, 400),
        (SPLIT, FirstToken.PREFILL, 6000),
        ((("p", Role.MIXED),), FirstToken.DECODE, 400),
    ],
)
def test_it_never_shows_what_is_still_to_come(
    workers: Sequence[tuple[str, Role]], first_token: FirstToken, blocks: int
) -> None:
    """Few KV blocks: answers make way for others in their middle, and go on later."""
    speed = make_speed(kv_capacity_tokens=16 * blocks, transfer_base_seconds=0.2)
    load = poisson(rate=6.0, count=90, prompt=700, output=300, seed=6)
    at = np.arange(0.25, 30.0, 0.25).tolist()
    seen, result = watch(load, at, cluster=make_cluster(speed, first_token=first_token), workers=workers)
    assert (result.preemptions > 0) is (blocks == 400)
    begins = load.arrival_seconds + result.ttft_seconds
    running_ever = 0
    for now, found in seen:
        count = len(found)
        running = ~found.ended & ~found.refused
        begun = running & (begins[:count] <= now)
        assert not found.made_tokens[running & ~begun].any()
        assert np.all(found.made_tokens[begun] >= 1)
        real = load.output_tokens[:count]
        assert np.all(found.made_tokens[running] < real[running])
        assert np.all(found.load.output_tokens[running] <= real[running])
        # No step of decoding is shorter than 0.0101 s.
        assert np.all(found.made_tokens[begun] <= 2 + (now - begins[:count][begun]) / 0.0101)
        running_ever += int(begun.sum())
    assert running_ever > 100
    for (_, one), (_, other) in pairwise(seen):
        assert np.all(one.made_tokens <= other.made_tokens[: len(one)]), "no answer gets shorter"


def test_parts_keep_their_columns_together() -> None:
    load = replace(
        poisson(rate=5.0, count=40, prompt=700, output=30, seed=6), prefix_ids=tuple((number,) for number in range(40))
    )
    ((now, found),), _ = watch(load, [5.0])
    newest = found.since(2.5)
    first = int((found.arrival_seconds < 2.5).sum())
    assert 0 < first < len(found) < 40
    assert len(newest) == len(found) - first
    assert newest.load.prefix_ids == tuple((number,) for number in range(first, len(found)))
    for column in ("made_tokens", "ended", "refused", "missed"):
        np.testing.assert_array_equal(getattr(newest, column), getattr(found, column)[first:])
    assert now == 5.0
