"""Patches do what RFC 6902, RFC 7386 and Kubernetes' strategic merge say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulcrum_local.objects.patch import PatchError, json_patch, merge_patch, strategic_merge_patch

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


@pytest.mark.parametrize(
    ("obj", "patch", "expected"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_examples(obj: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(obj, patch) == expected


@UNHURRIED
@given(OBJECTS, OBJECTS)
def test_merge_patch_is_idempotent_and_pure(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((obj, patch))
    once = merge_patch(obj, patch)
    assert merge_patch(once, patch) == once
    assert (obj, patch) == before


@UNHURRIED
@given(OBJECTS)
def test_merge_patch_with_nothing_changes_nothing(obj: dict[str, Any]) -> None:
    assert merge_patch(obj, {}) == obj
    assert merge_patch({}, obj) == without_nulls(obj)


def test_json_patch() -> None:
    obj = {"spec": {"replicas": 1, "list": [1, 2]}}
    ops = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 2},
        {"op": "add", "path": "/spec/list/-", "value": 3},
        {"op": "remove", "path": "/spec/list/0"},
        {"op": "add", "path": "/metadata", "value": {"a~b/c": 1}},
        {"op": "remove", "path": "/metadata/a~0b~1c"},
    ]
    assert json_patch(obj, ops) == {"spec": {"replicas": 2, "list": [2, 3]}, "metadata": {}}
    assert obj == {"spec": {"replicas": 1, "list": [1, 2]}}


@pytest.mark.parametrize(
    "ops",
    [
        {"op": "add"},
        [{"op": "remove", "path": "/nope"}],
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "fly", "path": "/a"}],
        [{"path": "/a"}],
        [{"op": "replace", "path": "", "value": 3}],
        [{"op": "add", "path": "no-slash", "value": 3}],
        ["what"],
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(ops: Any) -> None:
    with pytest.raises(PatchError):
        json_patch({"a": 1}, ops)


def a_pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


@pytest.mark.parametrize(
    ("obj", "patch", "expected"),
    [
        (  # items merge by key, new ones are appended
            a_pod({"name": "a", "image": "1"}),
            a_pod({"name": "a", "image": "2"}, {"name": "b"}),
            a_pod({"name": "a", "image": "2"}, {"name": "b"}),
        ),
        (a_pod({"name": "a"}, {"name": "b"}), a_pod({"name": "a", "$patch": "delete"}), a_pod({"name": "b"})),
        (a_pod({"name": "a"}, {"name": "b"}), a_pod({"$patch": "replace"}, {"name": "c"}), a_pod({"name": "c"})),
        (
            a_pod({"name": "a", "env": [{"name": "X", "value": "1"}]}),
            a_pod({"name": "a", "env": [{"name": "X", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]}),
            a_pod({"name": "a", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]}),
        ),
        (  # a list without a strategy is replaced
            a_pod({"name": "a", "args": ["1", "2"]}),
            a_pod({"name": "a", "args": ["3"]}),
            a_pod({"name": "a", "args": ["3"]}),
        ),
        (  # what kubectl apply sends when a container comes first
            a_pod({"name": "a"}, {"name": "injected"}),
            a_pod({"name": "new"}, **{"$setElementOrder/containers": [{"name": "new"}, {"name": "a"}]}),
            a_pod({"name": "new"}, {"name": "a"}, {"name": "injected"}),
        ),
        (
            a_pod({"name": "a"}, {"name": "b"}),
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
            a_pod({"name": "b"}, {"name": "a"}),
        ),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b", "c"]}},
        ),
        (
            a_pod(volumes=[{"name": "v", "emptyDir": {}}]),
            {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}, "$retainKeys": ["name", "hostPath"]}]}},
            a_pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        ),
        (
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"a": None}}},
            {"metadata": {"labels": {"b": "2"}}},
        ),
        (
            {"spec": {"nodeSelector": {"a": "1"}}},
            {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}},
            {"spec": {"nodeSelector": {"b": "2"}}},
        ),
        (
            {"spec": {"nodeSelector": {"a": "1"}}},
            {"spec": {"nodeSelector": {"$patch": "delete"}}},
            {"spec": {"nodeSelector": {}}},
        ),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        ),
    ],
)
def test_strategic_merge_examples(obj: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(obj)
    once = strategic_merge_patch(obj, patch, "Pod")
    assert once == expected
    assert obj == before


@pytest.mark.parametrize(
    "patch",
    [
        a_pod({"image": "x"}),
        {"spec": {"$patch": "explode"}},
        a_pod("x"),  # type: ignore[arg-type]
        {"spec": {"$retainKeys": ["a"], "b": 1}},
    ],
)
def test_a_strategic_patch_that_does_not_fit_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        strategic_merge_patch(a_pod({"name": "a"}), patch, "Pod")


@UNHURRIED
@given(st.permutations("abcd"), st.permutations("abcd"), st.sets(st.sampled_from("abcd")))
def test_an_element_order_is_kept(present: list[str], order: list[str], named: set[str]) -> None:
    obj = a_pod(*({"name": name} for name in present))
    wanted = [name for name in order if name in named]
    patch = {"spec": {"$setElementOrder/containers": [{"name": name} for name in wanted]}}
    names = [each["name"] for each in strategic_merge_patch(obj, patch, "Pod")["spec"]["containers"]]
    assert [name for name in names if name in named] == wanted
    assert [name for name in names if name not in named] == [name for name in present if name not in named]
    assert sorted(names) == list("abcd")
