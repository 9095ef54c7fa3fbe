"""Pure parts of the API server: paths, selectors, JSONPath, ages, models, protobuf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fulcrum_local.apiserver.authorization import missing_rules
from fulcrum_local.apiserver.bodies import parse_body, parse_yaml
from fulcrum_local.apiserver.budgets import desired_healthy
from fulcrum_local.apiserver.discovery import group
from fulcrum_local.apiserver.errors import ApiError
from fulcrum_local.apiserver.expiry import last_seen
from fulcrum_local.apiserver.json_path import first_text, values_at
from fulcrum_local.apiserver.kinds import Kind, Registry
from fulcrum_local.apiserver.model_types import decode_object, model_of
from fulcrum_local.apiserver.protobuf import decode_protobuf
from fulcrum_local.apiserver.request import parse_target
from fulcrum_local.apiserver.times import human_duration, time_text
from fulcrum_local.objects.selectors import SelectorError, field_test, label_test


def _code(call: Callable[[], object]) -> int:
    """200, or the code of the error."""
    try:
        call()
    except ApiError as error:
        return error.code
    except SelectorError:
        return 400
    return 200


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, ("list", "", "v1", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/a/pods", {"watch": "true"}, ("watch", "", "v1", "pods", "a", "", "")),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, ("get", "", "v1", "pods", "a", "b", "")),
        ("GET", "/api/v1/namespaces/a/pods/b/log", {}, ("get", "", "v1", "pods", "a", "b", "log")),
        ("DELETE", "/apis/g/v1/namespaces/a/b", {}, ("deletecollection", "g", "v1", "b", "a", "", "")),
        ("PATCH", "/apis/g.io/v1/things/x/status", {}, ("patch", "g.io", "v1", "things", "", "x", "status")),
        ("GET", "/api/v1/namespaces", {}, ("list", "", "v1", "namespaces", "", "", "")),
        ("PUT", "/api/v1/namespaces/a", {}, ("update", "", "v1", "namespaces", "a", "a", "")),
        ("PUT", "/api/v1/namespaces/a/finalize", {}, ("update", "", "v1", "namespaces", "a", "a", "finalize")),
        ("GET", "/api/v1/namespaces/a/status", {}, ("get", "", "v1", "namespaces", "a", "a", "status")),
        ("POST", "/apis/a.io/v1/namespaces/n/x", {}, ("create", "a.io", "v1", "x", "n", "", "")),
        ("GET", "/api/v1/nodes/a%2Fb", {}, ("get", "", "v1", "nodes", "", "a/b", "")),
    ],
)  # fmt: skip
def test_targets(method: str, path: str, query: dict[str, str], expected: tuple[str, ...]) -> None:
    target = parse_target(method, path, query)
    assert (
        target.verb, target.group, target.version, target.resource, target.namespace, target.name, target.subresource,
    ) == expected  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/healthz"])
def test_paths_without_a_resource(path: str) -> None:
    assert not parse_target("GET", path, {}).is_resource


@given(st.text(max_size=60))
def test_any_selector_is_read_or_refused(text: str) -> None:
    for parse in (label_test, lambda selector: field_test(selector, "pods")):
        assert _code(lambda parse=parse: parse(text)({})) in (200, 400)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[0].n", ["x"]),
        (".list[-1].n", ["y"]),
        (".list[*].n", ["x", "y"]),
        ('.list[?(@.n=="y")].v', [2]),
        (".list[?(@.n=='z')].v", []),
        (".dotted.k8s\\.io/x", ["d"]),
        (".dotted['k8s.io/x']", ["d"]),
        (".none.at.all", []),
        (".list[9]", []),
        ("][", []),
    ],
)
def test_json_path(path: str, values: list[Any]) -> None:
    obj = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "dotted": {"k8s.io/x": "d"}}
    assert values_at(obj, path) == values


def test_several_values_are_joined() -> None:
    assert first_text(["a", "b"]) == "a,b"
    assert first_text([{"a": 1}]) == '{"a":1}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10799, "179m"),
        (10800, "3h"), (11100, "3h5m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (176400, "2d1h"),
        (691200, "8d"), (86400 * 729, "729d"), (86400 * 730, "2y"), (86400 * 800, "2y70d"), (86400 * 365 * 9, "9y"),
    ],
)  # fmt: skip
def test_ages_are_rounded_as_kubectl_does(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def test_objects_are_decoded_as_go_would() -> None:
    model = model_of("", "v1", "Pod")
    assert model is not None
    obj = {
        "metadata": {"name": "x", "labels": {}, "nothing": 1, "annotations": None},
        "spec": {
            "containers": [{"name": "a", "resources": {"limits": {"cpu": 1}}, "else": True}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "nodeSelector": {},
        },
    }
    decoded, unknown = decode_object(obj, model, "Pod", "v1")
    assert decoded == {
        "metadata": {"name": "x"},
        "spec": {
            "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }
    assert unknown == ["metadata.nothing", "spec.containers[0].else"]
    with pytest.raises(ApiError, match="cannot unmarshal"):
        decode_object({"spec": {"containers": {}}}, model, "Pod", "v1")


@given(st.binary(max_size=200))
@example(b"\x08\x00")  # a number where a message belongs
@example(b"\x0a\x0d\x0a\x02v1\x12\x07ServiceX\x12\x00")
def test_damaged_protobuf_is_refused(raw: bytes) -> None:
    for content in (raw, b"k8s\x00" + raw):
        assert _code(lambda content=content: decode_protobuf(content)) in (200, 400, 415)  # type: ignore[misc]


@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/yaml", ""]))
def test_any_body_is_read_or_refused(raw: bytes, content_type: str) -> None:
    assert _code(lambda: parse_body(raw, content_type)) in (200, 400)


def test_yaml_times_stay_text() -> None:
    assert parse_yaml(b"a: 2026-01-01T00:00:00Z\nb: 2026-01-01\n") == {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01"}


@pytest.mark.parametrize(
    ("spec", "expected", "healthy"),
    [
        ({"minAvailable": 2}, 5, 2),
        ({"minAvailable": "50%"}, 5, 3),
        ({"maxUnavailable": 1}, 5, 4),
        ({"maxUnavailable": "20%"}, 5, 4),
        ({"maxUnavailable": 9}, 5, 0),
        ({}, 5, 4),
    ],
)
def test_disruption_budgets(spec: dict[str, Any], expected: int, healthy: int) -> None:
    assert desired_healthy(spec, expected) == healthy


def _rule(verbs: str, resources: str, names: str = "", groups: str = "") -> dict[str, Any]:
    rule: dict[str, Any] = {"verbs": verbs.split(), "apiGroups": [groups], "resources": resources.split()}
    return {**rule, "resourceNames": names.split()} if names else rule


@pytest.mark.parametrize(
    ("wanted", "held", "missing"),
    [
        (_rule("get", "pods"), _rule("*", "*", groups="*"), 0),
        (_rule("get list", "pods"), _rule("get", "pods"), 1),
        (_rule("get", "pods/log"), _rule("get", "pods"), 1),
        (_rule("get", "pods/log"), _rule("get", "*/log"), 0),
        (_rule("get", "pods"), _rule("get", "pods", "a"), 1),
        (_rule("get", "pods", "a"), _rule("get", "pods"), 0),
        (_rule("get", "pods", "a b"), _rule("get", "pods", "a"), 1),
        (_rule("*", "pods"), _rule("get list", "pods"), 1),
        ({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}, {"verbs": ["get"], "nonResourceURLs": ["/met*"]}, 0),
    ],
)
def test_rules_that_somebody_lacks(wanted: dict[str, Any], held: dict[str, Any], missing: int) -> None:
    assert len(missing_rules([wanted], [held])) == missing


def test_events_live_for_an_hour_after_they_were_last_seen() -> None:
    event = {
        "metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
        "lastTimestamp": "2026-01-01T11:00:00Z",
        "eventTime": None,
        "series": {"lastObservedTime": "2026-01-01T12:00:00.123456Z"},
    }
    assert time_text(last_seen(event)) == "2026-01-01T12:00:00Z"
    assert time_text(last_seen({**event, "series": None, "lastTimestamp": "nonsense"})) == "2026-01-01T10:00:00Z"


def test_the_preferred_version_comes_first() -> None:
    kinds = tuple(
        Kind(
            group="g", version=version, kind="A", plural="as", singular="a", list_kind="AList", namespaced=True,
            storage="as.g",
        )
        for version in ("v1alpha1", "other", "v1", "v1beta2", "v2", "v1beta10")
    )  # fmt: skip
    document = group(Registry(kinds), "g")
    assert document is not None
    versions = [entry["version"] for entry in document["versions"]]
    assert versions == ["v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "other"]
    assert document["preferredVersion"]["version"] == "v2"
