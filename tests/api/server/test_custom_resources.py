"""Custom resources: how a definition is served, changes and goes, and what an InferenceCluster may say."""

from __future__ import annotations

import copy
import re
import time
import uuid
from collections.abc import Iterator

import pytest
import requests
from tests.api.corpus_files import Accepted, Rejected, accepted, rejected, value_at
from tests.api.server.cluster import Http, Json, Kubectl, WatchStream, wait_for
from tests.machine import deadline_seconds

from fulcrum.api.crd import custom_resource_definition

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


def _ok(response: requests.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    obj: Json = response.json()
    return obj


def _widgets(group: str) -> Json:
    properties: Json = {
        "spec": {
            "type": "object",
            "description": "What is wanted.",
            "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 10, "default": 3, "description": "How large."},
                "parts": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            },
            "x-kubernetes-validations": [
                {"rule": "self.size != 7", "message": "seven is not a size"},
                {"rule": "self.size >= oldSelf.size", "message": "may only grow"},
            ],
        },
        "status": {
            "type": "object",
            "properties": {"size": {"type": "integer"}, "since": {"type": "string"}, "selector": {"type": "string"}},
        },
    }
    properties["spec"]["properties"]["parts"]["items"]["required"] = ["name"]
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.size",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Parts", "type": "string", "jsonPath": ".spec.parts[*].name", "priority": 1},
            {"name": "Since", "type": "date", "jsonPath": ".status.since"},
        ],
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _is_established(api: Http, name: str) -> bool:
    conditions = _ok(api.get(f"{CRDS}/{name}")).get("status", {}).get("conditions") or []
    return any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions)


def _install(api: Http, crd: Json) -> None:
    name = crd["metadata"]["name"]
    assert _ok(api.post(CRDS, json=crd), 201)["status"]["conditions"] is None, "null, not absent"
    wait_for(lambda: _is_established(api, name), "established")
    version = crd["spec"]["versions"][0]["name"]
    path = f"/apis/{crd['spec']['group']}/{version}/{crd['spec']['names']['plural']}"
    wait_for(lambda: api.get(path).status_code == 200, "served")


@pytest.fixture
def group(api: Http) -> Iterator[str]:
    """The group of a Widget definition of the test's own."""
    name = f"g{uuid.uuid4().hex[:10]}.example.com"
    _install(api, _widgets(name))
    yield name
    api.delete(f"{CRDS}/widgets.{name}")


@pytest.fixture
def path(group: str, namespace: str) -> str:
    return f"/apis/{group}/v1/namespaces/{namespace}/widgets"


def _widget(group: str, name: str = "one", **spec: object) -> Json:
    return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def test_defaults_pruning_and_status(api: Http, group: str, path: str) -> None:
    body = {**_widget(group, nothing=1), "status": {"size": 9}, "else": 1}
    created = _ok(api.post(path, json=body), 201)
    assert created["spec"] == {"size": 3}
    assert "status" not in created
    assert "else" not in created
    assert created["metadata"]["generation"] == 1


def test_schema_and_rules(api: Http, group: str, path: str) -> None:
    cases: list[tuple[Json, str]] = [
        ({"size": 11}, "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"),
        ({"size": "x"}, 'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"'),
        ({"size": 7}, "spec: Invalid value: seven is not a size"),
        ({"parts": [{"n": 1}]}, "spec.parts[0].name: Required value"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]: Duplicate value"),
    ]
    for spec, message in cases:
        response = api.post(path, json=_widget(group, **spec))
        assert response.status_code == 422, response.text
        status = response.json()
        assert status["reason"] == "Invalid"
        assert message in status["message"]
        assert status["message"].startswith(f'Widget.{group} "one" is invalid: ')
        assert (status["details"]["name"], status["details"]["group"], status["details"]["kind"]) == (
            "one", group, "Widget",
        )  # fmt: skip
        assert status["details"]["causes"][0]["field"].startswith("spec")
    _ok(api.post(path, json=_widget(group, size=5)), 201)
    response = api.patch(f"{path}/one", json={"spec": {"size": 4}}, headers=MERGE)
    assert response.status_code == 422
    assert "spec: Invalid value: may only grow" in response.json()["message"]
    _ok(api.patch(f"{path}/one", json={"spec": {"size": 6}}, headers=MERGE))


def test_unknown_fields(api: Http, group: str, path: str) -> None:
    body = _widget(group, nothing=1)
    response = api.post(path, params={"fieldValidation": "Strict"}, json=body)
    assert response.status_code == 400
    assert 'strict decoding error: unknown field "spec.nothing"' in response.json()["message"]
    response = api.post(path, json=body)
    assert 'unknown field \\"spec.nothing\\"' in response.headers["Warning"]


def test_status_and_spec_are_written_apart(api: Http, group: str, path: str) -> None:
    _ok(api.post(path, json=_widget(group, size=1)), 201)
    both = {"spec": {"size": 2}, "status": {"size": 5}, "metadata": {"labels": {"a": "b"}}}
    obj = _ok(api.patch(f"{path}/one/status", json=both, headers=MERGE))
    assert (obj["spec"], obj["status"], obj["metadata"]["generation"]) == ({"size": 1}, {"size": 5}, 1)
    assert "labels" not in obj["metadata"]
    obj = _ok(api.patch(f"{path}/one", json={**both, "status": {"size": 6}}, headers=MERGE))
    assert (obj["spec"], obj["status"], obj["metadata"]["generation"]) == ({"size": 2}, {"size": 5}, 2)
    obj["status"] = {"size": 7}
    assert _ok(api.put(f"{path}/one/status", json=obj))["status"] == {"size": 7}
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "status": {"selector": "a=b"}}
    obj = _ok(api.patch(f"{path}/one/status", params={"fieldManager": "me"}, json=body, headers=APPLY))
    assert obj["status"] == {"size": 7, "selector": "a=b"}
    entries = [entry for entry in obj["metadata"]["managedFields"] if entry["manager"] == "me"]
    assert [(entry["operation"], entry.get("subresource")) for entry in entries] == [("Apply", "status")]


def test_scale(api: Http, group: str, path: str, kubectl: Kubectl) -> None:
    _ok(api.post(path, json=_widget(group, size=1)), 201)
    _ok(api.patch(f"{path}/one/status", json={"status": {"size": 1, "selector": "a=b"}}, headers=MERGE))
    scale = _ok(api.get(f"{path}/one/scale"))
    assert (scale["kind"], scale["spec"], scale["status"]) == (
        "Scale", {"replicas": 1}, {"replicas": 1, "selector": "a=b"},
    )  # fmt: skip
    scale["spec"]["replicas"] = 4
    assert _ok(api.put(f"{path}/one/scale", json=scale))["spec"]["replicas"] == 4
    kubectl("scale", f"widgets.{group}/one", "--replicas=5")
    assert _ok(api.get(f"{path}/one"))["spec"]["size"] == 5
    response = api.patch(f"{path}/one/scale", json={"spec": {"replicas": 7}}, headers=MERGE)
    assert response.status_code == 422
    assert "seven is not a size" in response.json()["message"]


def test_updates_need_a_version(api: Http, group: str, path: str) -> None:
    obj = _ok(api.post(path, json=_widget(group, size=1)), 201)
    del obj["metadata"]["resourceVersion"]
    response = api.put(f"{path}/one", json=obj)
    assert response.status_code == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in response.json()["message"]


def test_strategic_merge_patch_is_for_built_in_kinds(api: Http, group: str, path: str) -> None:
    _ok(api.post(path, json=_widget(group)), 201)
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    response = api.patch(f"{path}/one", json={}, headers=headers)
    assert response.status_code == 415
    assert response.json()["message"] == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    ) or "application/apply-patch+cbor" in response.json()["message"]  # fmt: skip


def test_applied_lists_merge_by_key(api: Http, group: str, path: str) -> None:
    for manager, parts in (("a", [{"name": "x", "n": 1}]), ("b", [{"name": "y", "n": 2}])):
        body = _widget(group, parts=parts)
        response = api.patch(f"{path}/one", params={"fieldManager": manager}, json=body, headers=APPLY)
        assert response.status_code in (200, 201), response.text
    assert response.json()["spec"]["parts"] == [{"name": "x", "n": 1}, {"name": "y", "n": 2}]
    body = _widget(group, parts=[{"name": "x", "n": 3}])
    response = api.patch(f"{path}/one", params={"fieldManager": "b"}, json=body, headers=APPLY)
    assert response.status_code == 409
    assert 'conflict with "a": .spec.parts[name="x"].n' in response.json()["message"]


def test_kubectl_sees_the_kind(group: str, path: str, kubectl: Kubectl, api: Http) -> None:
    resource = f"widgets.{group}"
    kubectl("apply", "-f", "-", stdin=_widget(group, parts=[{"name": "a"}, {"name": "b"}]))
    assert kubectl("get", resource).split() == ["NAME", "SIZE", "SINCE", "one", "3"]
    _ok(api.patch(f"{path}/one/status", json={"status": {"since": "2001-01-01T00:00:00Z"}}, headers=MERGE))
    head, row = (line.split() for line in kubectl("get", resource, "-o", "wide").splitlines())
    assert head == ["NAME", "SIZE", "PARTS", "SINCE"]
    assert row[:2] == ["one", "3"]
    assert row[3].endswith("y")
    assert "How large." in kubectl("explain", "widgets.spec", "--api-version", f"{group}/v1")
    assert re.search(r"Size: +3", kubectl("describe", resource, "one"))
    error = kubectl.fails("apply", "-f", "-", stdin=_widget(group, size=7))
    assert error == 'The Widget "one" is invalid: spec: Invalid value: seven is not a size\n' or (
        "spec: Invalid value: seven is not a size" in error
    )
    error = kubectl.fails("apply", "-f", "-", stdin=_widget(group, colour="red"))
    assert 'strict decoding error: unknown field "spec.colour"' in error


def test_a_definition_takes_its_objects_along(api: Http, namespace: str) -> None:
    name = f"g{uuid.uuid4().hex[:10]}.example.com"
    crd = _widgets(name)
    _install(api, crd)
    path = f"/apis/{name}/v1/namespaces/{namespace}/widgets"
    body = _widget(name)
    body["metadata"]["finalizers"] = ["example.com/wait"]
    _ok(api.post(path, json=body), 201)
    _ok(api.post(path, json=_widget(name, "two")), 201)
    _ok(api.delete(f"{CRDS}/widgets.{name}"))
    wait_for(lambda: api.get(f"{path}/two").status_code == 404, "objects deleted")
    assert api.get(f"{CRDS}/widgets.{name}").status_code == 200
    _ok(api.patch(f"{path}/one", json={"metadata": {"finalizers": None}}, headers=MERGE))
    wait_for(lambda: api.get(f"{CRDS}/widgets.{name}").status_code == 404, "definition gone")
    wait_for(lambda: api.get(path).status_code == 404, "kind no longer served")
    # The same definition can come back, without its old objects.
    _install(api, crd)
    assert _ok(api.get(path))["items"] == []
    api.delete(f"{CRDS}/widgets.{name}")


def test_a_changed_schema_counts_at_once(api: Http, group: str, path: str) -> None:
    _ok(api.post(path, json=_widget(group, size=9)), 201)
    versions = _ok(api.get(f"{CRDS}/widgets.{group}"))["spec"]["versions"]
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]["maximum"] = 20
    _ok(api.patch(f"{CRDS}/widgets.{group}", json={"spec": {"versions": versions}}, headers=MERGE))
    wait_for(
        lambda: api.patch(f"{path}/one", json={"spec": {"size": 15}}, headers=MERGE).status_code == 200,
        "schema updated",
    )


def test_definitions_that_are_wrong(api: Http) -> None:
    good = _widgets(f"g{uuid.uuid4().hex[:10]}.example.com")
    bad_name = {**good, "metadata": {"name": "gadgets.example.com"}}
    no_storage = copy.deepcopy(good)
    no_storage["spec"]["versions"][0]["storage"] = False
    no_schema = copy.deepcopy(good)
    del no_schema["spec"]["versions"][0]["schema"]
    bad_rule = copy.deepcopy(good)
    rules = [{"rule": "self.nothing > 1"}, {"rule": "self.size +"}]
    bad_rule["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = (
        rules
    )
    for crd, message in (
        (bad_name, 'must be spec.names.plural+"."+spec.group'),
        (no_storage, "must have exactly one version marked as storage version"),
        (no_schema, "spec.versions[0].schema.openAPIV3Schema: Required value"),
        (bad_rule, "compilation failed"),
    ):
        response = api.post(CRDS, json=crd)
        assert response.status_code == 422, response.text
        assert message in response.json()["message"]


def test_watching_a_kind(api: Http, group: str, path: str) -> None:
    version = _ok(api.get(path))["metadata"]["resourceVersion"]
    with WatchStream(api, path, resourceVersion=version) as watch:
        _ok(api.post(path, json=_widget(group, "one")), 201)
        _ok(api.patch(f"{path}/one/status", json={"status": {"size": 1}}, headers=MERGE))
        assert watch.next_names(2) == [("ADDED", "one"), ("MODIFIED", "one")]


def test_watches_end_with_their_definition(api: Http, namespace: str) -> None:
    name = f"g{uuid.uuid4().hex[:10]}.example.com"
    _install(api, _widgets(name))
    path = f"/apis/{name}/v1/namespaces/{namespace}/widgets"
    version = _ok(api.get(path))["metadata"]["resourceVersion"]
    started, most_seconds = time.monotonic(), round(deadline_seconds(50))
    with WatchStream(api, path, resourceVersion=version, timeoutSeconds=most_seconds) as watch:
        _ok(api.delete(f"{CRDS}/widgets.{name}"))
        watch.rest()
    assert time.monotonic() - started < most_seconds


@pytest.fixture(scope="module")
def inference_clusters(api: Http) -> Iterator[str]:
    """The path of InferenceClusters in the namespace `default`, their definition installed."""
    crd = custom_resource_definition()
    name = crd["metadata"]["name"]
    installed_here = api.get(f"{CRDS}/{name}").status_code == 404
    if installed_here:
        _install(api, crd)
    yield "/apis/fulcrum.dev/v1alpha1/namespaces/default/inferenceclusters"
    if installed_here:
        api.delete(f"{CRDS}/{name}")


@pytest.mark.parametrize("case", accepted(), ids=lambda case: case.name)
def test_accepted_inference_clusters(api: Http, inference_clusters: str, case: Accepted) -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    document = copy.deepcopy(case.document)
    document["metadata"].pop("namespace", None)
    created = _ok(api.post(inference_clusters, params=query, json=document), 201)
    for pointer, value in case.defaults.items():
        assert value_at(created, pointer) == value


@pytest.mark.parametrize("case", rejected(), ids=lambda case: case.name)
def test_rejected_inference_clusters(api: Http, inference_clusters: str, case: Rejected) -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    document = copy.deepcopy(case.document)
    document["metadata"].pop("namespace", None)
    response = api.post(inference_clusters, params=query, json=document)
    assert response.status_code in (400, 422), response.text
    assert case.message in response.json()["message"]


def test_kubectl_and_inference_clusters(inference_clusters: str, kubectl: Kubectl) -> None:
    case = next(case for case in accepted() if case.name == "minimal")
    assert "created" in kubectl("apply", "-f", str(case.path), "--namespace", kubectl.namespace)
    head = kubectl("get", "inferenceclusters").splitlines()[0].split()
    assert head == ["NAME", "MODEL", "READY", "RATIO", "ATTAINMENT", "TTFT", "TPOT", "REJECTED", "AGE"]
    wide = kubectl("get", "inferenceclusters", "-o", "wide").splitlines()[0].split()
    assert "FORECAST" in wide
    text = kubectl("explain", "inferenceclusters.spec.pools")
    assert "FIELD: pools <[]Object>" in text
    assert "accelerator\t<string> -required-" in text
    bad = next(case for case in rejected() if case.name == "min_above_max")
    error = kubectl.fails("apply", "-f", str(bad.path), "--namespace", kubectl.namespace)
    assert error.startswith("The InferenceCluster ")
    assert bad.message in error
