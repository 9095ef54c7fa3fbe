"""Workers with ranks of data parallel: each rank is routed to by itself, and fails and goes with its worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import UNSET
from tests.routing.cluster import MOVING, SPEED, ask, cluster, find

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, RankReport, TransferCounters, WorkCounters
from fulcrum.routing import ClusterView, Route, WorkerView, decode_elsewhere, learn_batch, take_batch
from fulcrum.routing.health import WorkerHealth
from fulcrum.routing.tuning import TUNING


def groups(prefill: int = 2, decode: int = 8, workers: int = 1) -> ClusterView:
    """So many workers of each role, with so many ranks each."""
    view = cluster(0, 0)
    view.transfers.expect("pool", MOVING)
    for number in range(workers):
        view.workers.put(f"p{number}", Role.PREFILL, pool="pool", node=f"a{number}", data_parallel=prefill)
        view.workers.put(f"d{number}", Role.DECODE, pool="pool", node=f"b{number}", data_parallel=decode)
    return view


def of(rank: int, **figures: Any) -> RankReport:
    return RankReport(rank=rank, **figures)


def load(*ranks: RankReport, role: Role = Role.DECODE) -> LoadReport:
    return LoadReport(
        role=role, role_epoch=0, ready=True, draining=False, running=40, waiting=4, kv_usage=0.5,
        kv_capacity_tokens=800_000, max_batch=64, max_batched_tokens=4, ranks=ranks,
    )  # fmt: skip


def views(view: ClusterView, name: str) -> tuple[WorkerView, ...]:
    return view.workers.of_worker[name]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_requests_spread_over_ranks_as_over_workers(ranks: int) -> None:
    view, flat = groups(ranks, ranks), cluster(ranks, ranks)
    used: Counter[tuple[str, int | None]] = Counter()
    for number in range(8 * ranks):
        found, like = find(view, now_seconds=number / 100), find(flat, now_seconds=number / 100)
        if ranks == 1:
            assert (found.ttft_seconds, found.tpot_seconds) == (like.ttft_seconds, like.tpot_seconds)
        view.start(ask(), found, number / 100)
        flat.start(ask(), like, number / 100)
        used[found.decode.worker, found.decode.dp_rank] += 1
    assert set(used) == {("d0", rank if ranks > 1 else None) for rank in range(ranks)}
    assert set(used.values()) == {8}


def test_a_view_says_which_rank_of_which_worker_it_is() -> None:
    view = groups()
    view.workers.put("m", Role.MIXED, pool="pool")
    named = {(name, each.worker, each.dp_rank) for name, each in view.workers.by_name.items()}
    assert named == {
        ("m", "m", None), ("p0/dp0", "p0", 0), ("p0/dp1", "p0", 1), *((f"d0/dp{n}", "d0", n) for n in range(8)),
    }  # fmt: skip
    assert all(name == each.name for name, each in view.workers.by_name.items())


def test_a_prompt_goes_to_the_rank_that_has_its_prefix() -> None:
    view = groups(8, 8, workers=2)
    keys = (11, 12, 13)
    first = find(view, ask(prompt_tokens=1600, prefix=keys))
    flight = view.start(ask(prompt_tokens=1600, prefix=keys), first, 0.0)
    view.prefill_done(flight, 0.2)
    view.finish(flight, 3.0)
    for number in range(3):
        again = find(view, ask(prompt_tokens=1600, prefix=keys, two_legs=True), now_seconds=10.0 + number)
        assert again.prefill is first.prefill
        assert again.cached_tokens == 1536
    assert view.affinity.held(keys, views(view, first.prefill.worker)[first.prefill.dp_rank == 0].index) == 0


def test_all_ranks_of_a_worker_fail_are_tried_and_come_back_together() -> None:
    view = groups(2, 4, workers=2)
    view.workers.failed(views(view, "d0")[2], 0.0)
    assert all(each.suspect for each in views(view, "d0"))
    assert not any(each.suspect for each in (*views(view, "d1"), *views(view, "p0")))
    for _ in range(12):
        found = find(view, ask(two_legs=True))
        assert found.decode.worker == "d1", "the other one goes on"
        view.start(ask(), found, 0.0)
    view.workers.tick(TUNING.first_pause_seconds)
    trial = find(view, ask(two_legs=True), 0.6)
    assert trial.decode.worker == "d0"
    view.start(ask(), trial, 0.6)
    assert all(each.suspect for each in views(view, "d0")), "one trial for all of them"
    assert find(view, ask(two_legs=True), 0.6).decode.worker == "d1"
    view.workers.worked(trial.decode)
    assert not any(each.suspect for each in views(view, "d0"))


def test_a_request_is_not_tried_on_another_rank_of_a_worker_that_failed_it() -> None:
    view = groups(2, 8, workers=2)
    for _ in range(8):
        found = find(view, ask(exclude=frozenset({"d1", "p0"})))
        assert (found.prefill.worker, found.decode.worker) == ("p1", "d0")
        view.start(ask(), found, 0.0)
    held = views(view, "p0")[1]
    elsewhere = decode_elsewhere(ask(exclude=frozenset({"d0"})), held, view, 0.0)
    assert elsewhere is not None
    assert (elsewhere.prefill, elsewhere.decode.worker) == (held, "d1")


def test_a_pair_of_ranks_that_moves_no_kv_is_left_out_and_the_other_ranks_go_on() -> None:
    view = groups(2, 4)
    broken = [("p0/dp1", f"d0/dp{number}") for number in range(4)] + [("p0/dp0", "d0/dp0")]
    view.workers.set_broken(broken)
    for _ in range(24):
        found = find(view, ask(two_legs=True))
        assert found.prefill.name == "p0/dp0"
        assert found.decode.name in {"d0/dp1", "d0/dp2", "d0/dp3"}
        view.start(ask(), found, 0.0)


def test_ranks_of_one_worker_are_no_neighbours_and_a_busy_worker_is_one_neighbour() -> None:
    view = cluster(0, 0)
    for name, ranks in (("a", 8), ("b", 2), ("c", 1)):
        view.workers.put(name, Role.MIXED, pool="pool", node="n", data_parallel=ranks)
    view.workers.put("far", Role.MIXED, pool="pool", node="other", data_parallel=2)
    for rank in (*views(view, "a")[:3], *views(view, "far")):
        rank.set_foreign(0.0, prefill_seconds=1.0)
    assert [view.workers.busy_neighbours(views(view, name)[0]) for name in ("a", "b", "c", "far")] == [0, 1, 1, 0]
    views(view, "c")[0].set_foreign(0.0, running=1.0)
    assert [view.workers.busy_neighbours(views(view, name)[-1]) for name in ("a", "b", "c", "far")] == [1, 2, 1, 0]


def test_a_flip_is_of_all_ranks_and_a_worker_pairs_with_others_only() -> None:
    view = groups(2, 2)
    assert not view.workers.may_pair(*views(view, "p0"))
    assert view.workers.may_pair(views(view, "p0")[1], views(view, "d0")[1])
    before = views(view, "d0")
    view.workers.put("d0", Role.MIXED, pool="pool", node="b0", data_parallel=2)
    assert views(view, "d0") == before
    assert {each.role for each in before} == {Role.MIXED}
    view.workers.remove("d0")
    assert set(view.workers.by_name) == {"p0/dp0", "p0/dp1"}
    assert "d0" not in view.workers.of_worker
    view.workers.remove("d0")


@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 2), (2, 1), (2, 2)])
def test_another_process_may_have_another_number_of_ranks(before: int, after: int) -> None:
    view = groups(1, before)
    old = views(view, "d0")
    flight = view.start(ask(), find(view), 0.0)
    new = view.workers.put("d0", Role.DECODE, pool="pool", node="b0", incarnation="2", data_parallel=after)
    assert len(new) == len([each for each in view.workers.by_name.values() if each.worker == "d0"]) == after
    assert not {each.index for each in old} & set(view.workers.by_index)
    assert all(each.idle for each in new)
    view.prefill_done(flight, 0.1)
    view.finish(flight, 0.2)
    assert all(each.idle for each in new), "what was under way on the old process is over with it"
    assert isinstance(find(view, now_seconds=1.0), Route)


def test_each_rank_has_what_the_report_says_of_it() -> None:
    view = groups(1, 4)
    busy, idle = of(0, running=30, waiting=0, kv_usage=0.5), of(1, running=0, waiting=0, kv_usage=0.0)
    view.report("d0", load(busy, idle, of(3, waiting=3)), 1.0)
    assert [each.answers.foreign_running for each in views(view, "d0")] == [30, 0, 0, 0]
    assert views(view, "d0")[0].answers.foreign_context == pytest.approx(0.5 * SPEED.kv_capacity_tokens)
    for _ in range(30):
        found = find(view, now_seconds=1.0)
        assert found.decode.dp_rank != 0
        view.start(ask(), found, 1.0)


@pytest.mark.parametrize("ranks", [(), (of(0, running=30, waiting=0),)])
def test_of_a_rank_that_is_not_reported_nothing_is_known(ranks: tuple[RankReport, ...]) -> None:
    """The sum over all ranks says nothing of one; those that are reported go on."""
    view = groups(1, 2)
    view.report("d0", load(*ranks), 1.0)
    assert [each.answers.foreign_running for each in views(view, "d0")] == [30 if ranks else 0, 0]


def test_a_report_of_more_ranks_than_there_are_is_believed_of_those_that_there_are() -> None:
    view = groups(1, 2)
    view.report("d0", load(*(of(number, running=number + 1, waiting=0) for number in range(8))), 1.0)
    assert [each.answers.foreign_running for each in views(view, "d0")] == [1, 2]


def test_what_a_report_says_of_a_rank() -> None:
    work = WorkCounters(
        prompts=1, prompt_tokens=2, cached_tokens=0, prefill_seconds=1.0, decode_tokens=0, decode_seconds=0.0
    )
    moved = TransferCounters(
        pulled_tokens=1, computed_tokens=2, failed_transfers=3, failed_notifications=4, expired_requests=5
    )
    said = of(0, running=1, waiting=2, kv_capacity_tokens=90_000, work=work, transfers=moved)
    whole = load(said)
    assert whole.of_rank(0, 1) is whole
    first, second, third = (whole.of_rank(rank, 8) for rank in range(3))
    assert (first.running, first.kv_capacity_tokens, first.max_batch, first.work) == (1, 90_000, 64, work)
    assert (first.transfers, first.max_batched_tokens, first.ranks) == (moved, 4, UNSET)
    assert second == third
    assert (second.running, second.kv_usage, second.work, second.kv_capacity_tokens) == (None, None, None, 100_000)
    assert (second.role, second.ready) == (Role.DECODE, True)
    assert not second.idle, "unknown is not idle"


def test_gateways_tell_each_other_which_rank_was_sent_a_prefix() -> None:
    one, other = groups(8, 8), groups(8, 8)
    one.affinity.share(others=True)
    keys = (1, 2, 3)
    found = find(one, ask(prompt_tokens=1600, prefix=keys))
    one.start(ask(prompt_tokens=1600, prefix=keys), found, 0.0)
    batch = take_batch(one)
    assert batch is not None
    learn_batch(other, batch)
    assert find(other, ask(prompt_tokens=1600, prefix=keys)).prefill.name == found.prefill.name


def test_a_slow_worker_with_ranks_is_one_outlier_and_the_others_go_on() -> None:
    view = groups(1, 8, workers=6)
    for name in (f"d{number}" for number in range(6)):
        for _ in range(TUNING.recent_requests):
            for each in views(view, name)[:3]:
                each.health.record.learn(10.0 if name == "d3" else 1.0, 1.0)
    ejected = view.workers.tick(1.0)
    assert [each.worker for each in ejected] == ["d3"]
    assert {each.worker for each in view.workers.by_name.values() if each.suspect} == {"d3"}
    assert all(each.health.record.samples == 0 for each in views(view, "d3"))
    healths: set[WorkerHealth] = {each.health for each in views(view, "d3")}
    assert len(healths) == 1
