"""A request for a LoRA adapter goes to workers that have loaded it, on both legs; others go anywhere."""

from __future__ import annotations

import msgspec
import pytest
from tests.routing.cluster import ask, cluster, find, names, send

from fulcrum.routing import NoPath, decode_elsewhere, route

ASKED = msgspec.structs.replace(ask(), adapter="sql")
SQL = frozenset(("sql",))


@pytest.mark.parametrize("prefill", ["p0", "p1", "p2"])
@pytest.mark.parametrize("decode", ["d0", "d1"])
def test_both_legs_go_to_holders(prefill: str, decode: str) -> None:
    view = cluster(3, 2)
    for name in (prefill, decode):
        view.workers.set_adapters(name, SQL)
    for _ in range(5):  # however busy they are
        send(view, ASKED)
    assert names(find(view, ASKED)) == (prefill, decode)


def test_without_a_holder_there_is_no_path_yet() -> None:
    view = cluster(mixed=1)
    assert route(ASKED, view, 0.0) is NoPath.NONE_FITS
    view.workers.set_adapters("p0", frozenset(("other",)))
    assert route(ASKED, view, 0.0) is NoPath.NONE_FITS
    find(view, ask())


def test_none_can_load_it_only_once_all_have_failed() -> None:
    view = cluster()
    assert not view.workers.none_can_load("sql"), "not known yet"
    view.workers.set_adapters("p0", frozenset(), SQL)
    assert not view.workers.none_can_load("sql")
    for name in list(view.workers.by_name):
        view.workers.set_adapters(name, frozenset(), SQL)
    assert view.workers.none_can_load("sql")
    assert not view.workers.none_can_load("tone")
    view.workers.set_adapters("d1", frozenset())
    assert not view.workers.none_can_load("sql"), "it tries again"


def test_without_workers_one_may_load_it() -> None:
    assert not cluster(0, 0).workers.none_can_load("sql")


def test_one_holder_serves_it_whole() -> None:
    view = cluster()
    view.workers.set_adapters("d1", SQL)
    assert names(find(view, ASKED)) == ("d1",)


def test_a_held_prefill_moves_to_a_holder_only() -> None:
    view = cluster(2, 2)
    for name in ("p0", "d0"):
        view.workers.set_adapters(name, SQL)
    tried = msgspec.structs.replace(ASKED, exclude=frozenset(("d0",)))
    assert decode_elsewhere(tried, view.workers.by_name["p0"], view, 0.0) is None
    view.workers.set_adapters("d1", SQL)
    found = decode_elsewhere(tried, view.workers.by_name["p0"], view, 0.0)
    assert found is not None
    assert found.decode.name == "d1"


def test_another_process_holds_nothing() -> None:
    view = cluster(1, 1)
    for name in ("p0", "d0"):
        view.workers.set_adapters(name, SQL)
    view.workers.put("d0", view.workers.by_name["d0"].role, pool="pool", incarnation="2")
    assert names(find(view, ASKED)) == ("p0",)
