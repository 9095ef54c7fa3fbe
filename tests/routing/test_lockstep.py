"""Ranks of one worker take each step together: what is predicted for one depends on the others."""

from __future__ import annotations

import pytest
from tests.routing.cluster import MOVING, SPEED, ask, cluster, find

from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Flight, Route
from fulcrum.routing.lockstep import Lockstep
from fulcrum.routing.prefill_queue import PrefillQueue


def one_group(ranks: int = 2) -> ClusterView:
    """A prefill worker with so many ranks, and a decode worker. A prompt of 1,000 tokens takes 0.1 s."""
    view = cluster(0, 1)
    view.workers.put("p0", Role.PREFILL, pool="pool", data_parallel=ranks)
    return view


def send(view: ClusterView, now: float, tokens: float = 1000.0) -> Flight:
    return view.start(ask(prompt_tokens=tokens), find(view, ask(prompt_tokens=tokens), now), now)


def prefill(view: ClusterView, now: float, tokens: float = 1000.0) -> tuple[float, float]:
    """Wait and own time that is predicted for a prompt."""
    found: Route = find(view, ask(prompt_tokens=tokens, two_legs=True), now)
    return pytest.approx(found.wait_seconds, abs=1e-9), pytest.approx(found.own_seconds, abs=1e-9)


def test_a_worker_without_others_ranks_has_none_to_wait_for() -> None:
    view = cluster(2, 2)
    assert all(worker.lockstep is None for worker in view.workers.by_name.values())
    one, other = find(one_group(1)), find(cluster(1, 1))
    assert (one.ttft_seconds, one.tpot_seconds) == (other.ttft_seconds, other.tpot_seconds)


def test_an_idle_rank_begins_when_the_step_of_the_others_ends() -> None:
    view = one_group()
    first = send(view, 0.0)
    assert prefill(view, 0.04) == (0.06, 0.1)
    second = send(view, 0.04)
    assert second.prefill is not first.prefill
    view.prefill_done(first, 0.1)
    assert second.prefill.prompts.anchor == 0.1, "its step has begun"
    assert second.prefill.prompts.step_left_seconds(0.15) == pytest.approx(0.05)
    assert prefill(view, 0.15) == (0.05, 0.1)
    view.prefill_done(second, 0.2)
    assert prefill(view, 0.2) == (0.0, 0.1)


def test_a_step_that_ends_sooner_than_predicted_begins_the_next_one() -> None:
    view = one_group(3)
    first, second = send(view, 0.0), send(view, 0.05)
    assert second.prefill.prompts.anchor == pytest.approx(0.1)
    view.prefill_done(first, 0.07)
    assert second.prefill.prompts.anchor == 0.07


def test_a_short_prompt_takes_as_long_as_the_longest_beside_it() -> None:
    view = one_group(3)
    send(view, 0.0)
    assert prefill(view, 0.05, 200) == (0.05, 0.02)
    send(view, 0.05, 4000)
    assert prefill(view, 0.05, 200) == (0.05, 0.4), "they share a step"
    assert prefill(view, 0.05, 6000) == (0.05, 0.6)


def test_what_waits_behind_a_full_step_is_not_waited_for() -> None:
    view = one_group(2)
    send(view, 0.0)
    for _ in range(5):
        flight = find(view, ask(prompt_tokens=8000.0, two_legs=True), 0.01)
        view.start(ask(prompt_tokens=8000.0), flight, 0.01)
    lockstep = view.workers.of_worker["p0"][0].lockstep
    assert lockstep is not None
    longest = SPEED.max_batched_tokens * 1e-4
    assert all(lockstep.beside_seconds(each.prompts, 0.01) <= longest + 1e-9 for each in view.workers.of_worker["p0"])
    assert lockstep.backlog_seconds(0.01) > longest


def test_an_idle_worker_comes_before_an_idle_rank_of_a_busy_one() -> None:
    view = one_group(2)
    view.workers.put("p1", Role.PREFILL, pool="pool", data_parallel=2)
    order = [send(view, 0.0, 3000.0).prefill.worker for _ in range(2)]
    assert set(order) == {"p0", "p1"}
    # Then the rank whose worker is free first.
    assert send(view, 0.2, 1000.0).prefill.worker == order[0]


def test_what_decodes_stands_still_while_another_rank_prefills() -> None:
    paces = {}
    for ranks in (1, 2, 8):
        view = cluster(0, 0)
        view.workers.put("m0", Role.MIXED, pool="pool", data_parallel=ranks)
        now = 0.0
        for _ in range(60 * ranks):
            now += 0.5 / ranks
            found = find(view, now_seconds=now)
            flight = view.start(ask(), found, now)
            view.prefill_done(flight, now + found.wait_seconds + found.own_seconds)
            view.finish(flight, now + found.wait_seconds + found.own_seconds)
        paces[ranks] = find(view, now_seconds=now + 0.1).tpot_seconds
    assert paces[1] < paces[2] < paces[8]
    assert paces[8] > 2 * paces[1]


def test_a_path_over_an_idle_rank_is_idle_where_no_other_rank_prefills() -> None:
    view = one_group(3)
    assert find(view).idle
    first = send(view, 0.0)
    view.prefill_done(first, 0.1)
    view.finish(first, 0.1)
    assert find(view, now_seconds=0.1).idle
    second = send(view, 0.1)
    found = find(view, ask(two_legs=True), 0.12)
    assert found.prefill is not second.prefill
    assert not found.idle
    view.finish(second, 0.2)
    assert find(view, now_seconds=0.2).idle


def test_a_hang_of_all_ranks_is_one_and_a_long_prompt_on_one_is_none() -> None:
    view = one_group(2)
    long, short = send(view, 0.0, 20_000.0), send(view, 0.0, 100.0)
    lockstep = long.prefill.lockstep
    assert lockstep is not None
    assert short.prefill is not long.prefill
    assert short.prefill.prompts.overdue(1.5)
    assert not lockstep.overdue(1.5)
    assert lockstep.overdue(4.5)


def test_prompts_of_other_gateways_count_too() -> None:
    view = one_group(2)
    view.workers.of_worker["p0"][1].set_foreign(0.0, prefill_seconds=0.3)
    assert prefill(view, 0.1) == (0.2, 0.1)
    view.workers.of_worker["p0"][1].set_foreign(0.1)
    assert prefill(view, 0.1) == (0.0, 0.1)


def test_nothing_is_left_over() -> None:
    """A long history of prompts that come, are answered and are given up leaves idle ranks as if new."""
    view = one_group(4)
    view.transfers.expect("pool", MOVING)
    flights: list[Flight] = []
    for number in range(400):
        now = number * 0.01
        flights.append(send(view, now, 100.0 + 900 * (number % 3)))
        if number % 2:
            flight = flights.pop(number % len(flights))
            if number % 3:
                view.prefill_done(flight, now)
            view.finish(flight, now)
    for flight in flights:
        view.finish(flight, 4.0)
    lockstep = view.workers.of_worker["p0"][0].lockstep
    assert lockstep is not None
    assert lockstep.left_seconds(4.0) == lockstep.backlog_seconds(4.0) == 0.0
    assert prefill(view, 4.0) == (0.0, 0.1)
    assert all(worker.prefill_key[0] == 0.0 for worker in view.workers.of_worker["p0"])


def test_others_are_told_that_their_place_may_have_changed() -> None:
    told: list[int] = []
    queues = [PrefillQueue((0,)) for _ in range(3)]
    lockstep = Lockstep(queues, [lambda: told.append(1)] * 3)
    lockstep.moved(1.0)
    lockstep.ended(1.0, done=False)
    assert len(told) == 6
