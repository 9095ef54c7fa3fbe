"""The store: versions, history, and what a new process finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.expiry import remove_expired
from fulcrum_local.apiserver.store import LOG_LENGTH, Change, Store
from fulcrum_local.apiserver.times import parse_time


def _obj(name: str, namespace: str = "ns", **data: str) -> Json:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state.db")


def test_versions_grow_over_all_resources(store: Store) -> None:
    versions = [
        store.put("a", _obj("x")).version,
        store.put("b", _obj("x")).version,
        store.remove("a", ("ns", "x")).version,
    ]
    assert versions == sorted(set(versions))
    assert store.version == versions[-1]
    store.close()


def test_changes_carry_before_and_after(store: Store) -> None:
    changes: list[Change] = []
    stop = store.listen("a", changes.append)
    first = store.put("a", _obj("x", v="1"))
    second = store.put("a", _obj("x", v="2"))
    last = store.remove("a", ("ns", "x"))
    stop()
    store.put("a", _obj("y"))
    assert [(change.old, change.deleted) for change in changes] == [(None, False), (first, False), (second, True)]
    assert changes[-1].new.obj["data"] == {"v": "2"}
    assert changes[-1].new.obj["metadata"]["resourceVersion"] == str(last.version)
    assert store.changes_since("a", first.version) == changes[1:] + store.changes_since("a", last.version)
    store.close()


def test_the_log_forgets_and_says_so(store: Store) -> None:
    first = store.put("a", _obj("x"))
    for number in range(LOG_LENGTH + 5):
        store.put("a", _obj("y", n=str(number)))
    with pytest.raises(ApiError) as caught:
        store.changes_since("a", first.version)
    assert caught.value.code == 410
    assert len(store.changes_since("a", store.version - LOG_LENGTH)) == LOG_LENGTH
    assert store.changes_since("quiet", first.version) == []  # the noise of one resource is not another's
    store.close()


def test_a_new_process_finds_everything(tmp_path: Path) -> None:
    first = Store(tmp_path / "state.db")
    first.put("a", _obj("x", v="1"))
    first.put("a", _obj("y"))
    first.remove("a", ("ns", "y"))
    version, scanned = first.version, first.scan("a")
    first.close()
    second = Store(tmp_path / "state.db")
    assert second.version == version  # of the deletion, though the object is gone
    assert second.scan("a") == scanned
    assert second.changes_since("a", version) == []
    with pytest.raises(ApiError):
        second.changes_since("a", version - 1)
    second.close()


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.sampled_from("xyz"), st.sampled_from(["n1", "n2"])), max_size=30
)


@settings(deadline=None, max_examples=60)
@given(steps=_STEPS)
def test_every_past_version_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "state.db")
    snapshots = {store.version: store.scan("a")}
    for number, (step, name, namespace) in enumerate(steps):
        if step == "put":
            store.put("a", _obj(name, namespace, n=str(number)))
        elif store.get("a", namespace, name):
            store.remove("a", (namespace, name))
        snapshots[store.version] = store.scan("a")
    for version, expected in snapshots.items():
        assert store.scan_at("a", "", version) == expected
        assert store.scan_at("a", "n1", version) == [entry for entry in expected if entry.key[0] == "n1"]
    store.close()


def test_old_events_go_and_recent_ones_stay(store: Store) -> None:
    for name, seen in (("old", "2026-01-01T10:00:00Z"), ("recent", "2026-01-01T11:30:00Z")):
        event = _obj(name) | {"lastTimestamp": seen}
        event["metadata"]["creationTimestamp"] = "2026-01-01T09:00:00Z"
        store.put("events", event)
    remove_expired(store, parse_time("2026-01-01T12:00:00Z"))
    assert [stored.key[1] for stored in store.scan("events")] == ["recent"]
    store.close()


def test_the_log_of_changes_is_bounded_by_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    body = {"metadata": {"name": "a", "namespace": "n"}, "data": {"x": "y" * 1_000_000}}
    for _ in range(40):
        last = store.put("configmaps", {**body, "metadata": dict(body["metadata"])})
    kept = store.changes_since("configmaps", last.version - 10)
    assert len(kept) == 10
    with pytest.raises(ApiError) as caught:
        store.changes_since("configmaps", last.version - 30)
    assert caught.value.code == 410
    store.close()
