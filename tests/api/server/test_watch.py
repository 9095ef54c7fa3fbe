"""List and watch: versions, resuming, selectors, bookmarks, streaming lists, and how they end."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.api.server.cluster import Http, Json, WatchStream, config_map
from tests.machine import cost_ratio, deadline_seconds


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _create(api: Http, path: str, name: str, labels: dict[str, str] | None = None) -> Json:
    response = api.post(path, json=config_map(name, labels))
    assert response.status_code == 201, response.text
    created: Json = response.json()
    return created


def _list(api: Http, path: str, **parameters: str | int) -> Json:
    response = api.get(path, params={"labelSelector": "test", **parameters})
    assert response.status_code == 200, response.text
    listed: Json = response.json()
    return listed


TEST = {"test": "yes"}


def test_a_watch_continues_a_list(api: Http, path: str) -> None:
    _create(api, path, "before", TEST)
    version = _list(api, path)["metadata"]["resourceVersion"]
    with WatchStream(api, path, resourceVersion=version, labelSelector="test") as watch:
        _create(api, path, "after", TEST)
        api.patch(f"{path}/after", json={"data": {"a": "1"}}, headers={"Content-Type": "application/merge-patch+json"})
        api.delete(f"{path}/before")
        assert watch.next_names(3) == [("ADDED", "after"), ("MODIFIED", "after"), ("DELETED", "before")]


def test_a_watch_without_a_version_begins_with_what_there_is(api: Http, path: str) -> None:
    _create(api, path, "one", TEST)
    _create(api, path, "two", TEST)
    for parameters in ({}, {"resourceVersion": "0"}):
        with WatchStream(api, path, labelSelector="test", **parameters) as watch:
            assert sorted(watch.next_names(2)) == [("ADDED", "one"), ("ADDED", "two")]


def test_a_deleted_object_carries_the_version_of_its_deletion(api: Http, path: str) -> None:
    created = _create(api, path, "one", TEST)
    with WatchStream(api, path, resourceVersion=created["metadata"]["resourceVersion"], labelSelector="test") as watch:
        api.delete(f"{path}/one")
        event = watch.next()
    assert event["type"] == "DELETED"
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    # Resuming from there misses nothing and repeats nothing.
    version = event["object"]["metadata"]["resourceVersion"]
    with WatchStream(api, path, resourceVersion=version, labelSelector="test") as watch:
        _create(api, path, "two", TEST)
        assert watch.next_names(1) == [("ADDED", "two")]


def test_selectors_turn_changes_into_added_and_deleted(api: Http, path: str) -> None:
    version = _create(api, path, "one", {"color": "red"})["metadata"]["resourceVersion"]
    merge = {"Content-Type": "application/merge-patch+json"}
    with WatchStream(api, path, resourceVersion=version, labelSelector="color=blue") as watch:
        api.patch(f"{path}/one", json={"metadata": {"labels": {"color": "blue"}}}, headers=merge)
        api.patch(f"{path}/one", json={"data": {"a": "1"}}, headers=merge)
        api.patch(f"{path}/one", json={"metadata": {"labels": {"color": "green"}}}, headers=merge)
        events = [watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    # The client gets the object as it knew it.
    assert events[2]["object"]["metadata"]["labels"] == {"color": "blue"}


def test_an_old_version_is_gone(api: Http, path: str) -> None:
    with WatchStream(api, path, resourceVersion=1) as watch:
        event = watch.next()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_a_version_from_the_future_times_out(api: Http, path: str) -> None:
    response = api.get(path, params={"resourceVersion": str(2**50)})
    assert response.status_code == 504
    assert "Too large resource version" in response.json()["message"]


def test_bookmarks_arrive_before_the_end(api: Http, path: str) -> None:
    created = _create(api, path, "one", TEST)
    version = created["metadata"]["resourceVersion"]
    started = time.monotonic()
    with WatchStream(
        api, path, resourceVersion=version, labelSelector="test", allowWatchBookmarks="true", timeoutSeconds=4
    ) as watch:
        events = watch.rest()
    assert 2 < time.monotonic() - started < deadline_seconds(30)
    assert events, "no bookmark"
    assert {event["type"] for event in events} == {"BOOKMARK"}
    bookmark = events[-1]["object"]
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(version)
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")


def test_a_streaming_list_ends_with_an_annotated_bookmark(api: Http, path: str) -> None:
    _create(api, path, "one", TEST)
    _create(api, path, "two", TEST)
    with WatchStream(
        api,
        path,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        labelSelector="test",
    ) as watch:
        assert sorted(watch.next_names(2)) == [("ADDED", "one"), ("ADDED", "two")]
        end = watch.next()
        assert end["type"] == "BOOKMARK"
        assert end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
        _create(api, path, "three", TEST)
        assert watch.next_names(1) == [("ADDED", "three")]


def test_streaming_lists_need_their_match(api: Http, path: str) -> None:
    response = api.get(path, params={"watch": "true", "sendInitialEvents": "true"})
    assert response.status_code == 422
    assert "sendInitialEvents" in response.json()["message"]


def test_pages_show_one_moment(api: Http, path: str) -> None:
    for number in range(5):
        _create(api, path, f"map-{number}", TEST)
    first = _list(api, path, limit=2)
    assert [item["metadata"]["name"] for item in first["items"]] == ["map-0", "map-1"]
    api.delete(f"{path}/map-2")
    _create(api, path, "map-9", TEST)
    names, token = [], first["metadata"]["continue"]
    while token:
        page = _list(api, path, limit=2, **{"continue": token})
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue")
    assert names == ["map-2", "map-3", "map-4"]


def test_a_list_at_an_exact_version(api: Http, path: str) -> None:
    version = _create(api, path, "one", TEST)["metadata"]["resourceVersion"]
    api.delete(f"{path}/one")
    then = _list(api, path, resourceVersion=version, resourceVersionMatch="Exact")
    assert [item["metadata"]["name"] for item in then["items"]] == ["one"]
    assert _list(api, path)["items"] == []


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", ["one"]),
        ("a==1", ["one"]),
        ("a!=1", ["three", "two"]),
        ("a", ["one", "two"]),
        ("!a", ["three"]),
        ("a in (1,2)", ["one", "two"]),
        ("a notin (1)", ["three", "two"]),
        ("a in (1,2),b=x", ["two"]),
    ],
)
def test_label_selectors(api: Http, path: str, selector: str, names: list[str]) -> None:
    _create(api, path, "one", {"test": "yes", "a": "1"})
    _create(api, path, "two", {"test": "yes", "a": "2", "b": "x"})
    _create(api, path, "three", {"test": "yes", "b": "y"})
    items = api.get(path, params={"labelSelector": f"test,{selector}"}).json()["items"]
    assert sorted(item["metadata"]["name"] for item in items) == names


def test_field_selectors(api: Http, path: str) -> None:
    _create(api, path, "one", TEST)
    _create(api, path, "two", TEST)
    listed = _list(api, path, fieldSelector="metadata.name=one")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["one"]
    listed = _list(api, path, fieldSelector="metadata.name!=one")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["two"]
    response = api.get(path, params={"fieldSelector": "data.x=1"})
    assert response.status_code == 400
    known = '"data.x" is not a known field selector: only "metadata.name", "metadata.namespace"'
    assert known in response.json()["message"]


def test_a_selector_that_cannot_be_read_is_refused(api: Http, path: str) -> None:
    assert api.get(path, params={"labelSelector": "a in ("}).status_code == 400
    assert api.get(path, params={"watch": "true", "labelSelector": "a in ("}).status_code == 400


def test_a_patch_reaches_watchers_as_soon_as_it_is_answered(api: Http, path: str, external_kubeconfig: object) -> None:
    if external_kubeconfig is not None:
        pytest.skip("a promise of the embedded server")
    version = _create(api, path, "one", TEST)["metadata"]["resourceVersion"]
    merge = {"Content-Type": "application/merge-patch+json"}
    numbers = itertools.count()

    def patch() -> str:
        patched = api.patch(f"{path}/one", json={"data": {"n": str(next(numbers))}}, headers=merge).json()
        return str(patched["metadata"]["resourceVersion"])

    with WatchStream(api, path, resourceVersion=version, timeoutSeconds=3600) as watch:

        def patch_and_see() -> None:
            written = patch()
            while watch.next()["object"]["metadata"]["resourceVersion"] != written:
                pass

        ratio = cost_ratio(patch, patch_and_see, rounds=50, clock=time.perf_counter)
    assert ratio < 5, "of the time of a PATCH"
