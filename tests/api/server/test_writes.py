"""Create, update, patch and delete over HTTP: versions, conflicts, preconditions, dry runs, and what is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import requests
from tests.api.server.cluster import Http, Json, config_map, deployment, pod, wait_for

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def deployments(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments"


def _ok(response: requests.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    obj: Json = response.json()
    return obj


def _status(response: requests.Response, code: int, reason: str) -> Json:
    assert response.status_code == code, response.text
    status: Json = response.json()
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
    assert status["reason"] == reason
    return status


def test_a_new_object_gets_its_identity(api: Http, path: str, namespace: str) -> None:
    metadata = _ok(api.post(path, json=config_map("one", a="1")), 201)["metadata"]
    assert metadata["name"] == "one"
    assert metadata["namespace"] == namespace
    assert uuid.UUID(metadata["uid"])
    assert metadata["resourceVersion"]
    assert metadata["creationTimestamp"].endswith("Z")


def test_generated_names_differ(api: Http, path: str) -> None:
    body = {"metadata": {"generateName": "some-"}}
    names = {_ok(api.post(path, json=body), 201)["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("some-") and len(name) == 10 for name in names)


def test_a_name_is_taken_once(api: Http, path: str) -> None:
    _ok(api.post(path, json=config_map("one")), 201)
    status = _status(api.post(path, json=config_map("one")), 409, "AlreadyExists")
    assert status["message"] == 'configmaps "one" already exists'
    assert status["details"] == {"name": "one", "kind": "configmaps"}


def test_what_is_not_there_is_not_found(api: Http, path: str) -> None:
    for response in (
        api.get(f"{path}/none"),
        api.delete(f"{path}/none"),
        api.put(f"{path}/none", json=config_map("none")),
        api.patch(f"{path}/none", json={}, headers=MERGE),
    ):
        assert _status(response, 404, "NotFound")["message"] == 'configmaps "none" not found'


def test_an_update_of_an_old_version_conflicts(api: Http, path: str) -> None:
    old = _ok(api.post(path, json=config_map("one", a="1")), 201)
    _ok(api.put(f"{path}/one", json={**old, "data": {"a": "2"}}))
    status = _status(api.put(f"{path}/one", json={**old, "data": {"a": "3"}}), 409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    # Without a version the last writer wins.
    del old["metadata"]["resourceVersion"]
    assert _ok(api.put(f"{path}/one", json={**old, "data": {"a": "4"}}))["data"] == {"a": "4"}


def test_a_patch_with_a_version_is_conditional(api: Http, path: str) -> None:
    old = _ok(api.post(path, json=config_map("one", a="1")), 201)
    _ok(api.patch(f"{path}/one", json={"data": {"a": "2"}}, headers=MERGE))
    body = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    _status(api.patch(f"{path}/one", json=body, headers=MERGE), 409, "Conflict")


def test_another_uid_conflicts(api: Http, path: str) -> None:
    obj = _ok(api.post(path, json=config_map("one")), 201)
    obj["metadata"]["uid"] = str(uuid.uuid4())
    status = _status(api.put(f"{path}/one", json=obj), 409, "Conflict")
    assert "UID in precondition" in status["message"]


@pytest.mark.parametrize("headers", [MERGE, STRATEGIC])
@pytest.mark.parametrize("field", ["uid", "deletionTimestamp"])
def test_a_patch_makes_no_other_object_of_it(api: Http, path: str, headers: dict[str, str], field: str) -> None:
    made = _ok(api.post(path, json=config_map("a")), 201)
    value = {"uid": str(uuid.uuid4()), "deletionTimestamp": "2030-01-01T00:00:00Z"}[field]
    refused = _status(api.patch(f"{path}/a", json={"metadata": {field: value}}, headers=headers), 422, "Invalid")
    assert f"metadata.{field}" in refused["message"]
    assert _ok(api.get(f"{path}/a"))["metadata"] == made["metadata"]


@pytest.mark.parametrize("limit", ["x", "1.5", "0x1"])
def test_a_limit_is_a_number(api: Http, path: str, limit: str) -> None:
    _status(api.get(f"{path}?limit={limit}"), 400, "BadRequest")


def test_a_write_that_changes_nothing_writes_nothing(api: Http, path: str) -> None:
    obj = _ok(api.post(path, json=config_map("one", a="1")), 201)
    version = obj["metadata"]["resourceVersion"]
    assert _ok(api.put(f"{path}/one", json=obj))["metadata"]["resourceVersion"] == version
    patched = _ok(api.patch(f"{path}/one", json={"data": {"a": "1"}}, headers=MERGE))
    assert patched["metadata"]["resourceVersion"] == version


def test_system_metadata_cannot_be_written(api: Http, path: str) -> None:
    old = _ok(api.post(path, json=config_map("one")), 201)["metadata"]
    body = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"a": "b"}}}
    new = _ok(api.patch(f"{path}/one", json=body, headers=MERGE))["metadata"]
    assert new["labels"] == {"a": "b"}
    assert new["creationTimestamp"] == old["creationTimestamp"]
    assert new["uid"] == old["uid"]


def test_patches_of_every_format(api: Http, deployments: str) -> None:
    _ok(api.post(deployments, json=deployment("one")), 201)
    one = f"{deployments}/one"
    env = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}}}}
    strategic = _ok(api.patch(one, json=env, headers=STRATEGIC))
    (container,) = strategic["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/none:1"  # merged by name, not replaced
    assert container["env"] == [{"name": "A", "value": "1"}]
    operations = [
        {"op": "test", "path": "/spec/template/spec/containers/0/name", "value": "main"},
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.com/none:2"},
    ]
    patched = _ok(api.patch(one, json=operations, headers=JSON_PATCH))
    assert patched["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/none:2"
    merged = _ok(api.patch(one, json={"spec": {"replicas": 0}, "metadata": {"labels": {"x": "y"}}}, headers=MERGE))
    assert merged["spec"]["replicas"] == 0
    assert merged["metadata"]["labels"] == {"x": "y"}
    unlabeled = _ok(api.patch(one, json={"metadata": {"labels": {"x": None}}}, headers=MERGE))
    assert "labels" not in unlabeled["metadata"] or not unlabeled["metadata"]["labels"]


def test_a_json_patch_that_does_not_fit(api: Http, path: str) -> None:
    _ok(api.post(path, json=config_map("one", a="1")), 201)
    operations = [{"op": "test", "path": "/data/a", "value": "2"}]
    _status(api.patch(f"{path}/one", json=operations, headers=JSON_PATCH), 422, "Invalid")
    remove = [{"op": "remove", "path": "/data/none"}]
    _status(api.patch(f"{path}/one", json=remove, headers=JSON_PATCH), 422, "Invalid")


def test_server_side_apply_creates_merges_and_conflicts(api: Http, path: str) -> None:
    def apply(manager: str, code: int = 200, force: str = "false", **entries: str) -> Json:
        body = config_map("one", None, **entries)
        query = {"fieldManager": manager, "force": force}
        return _ok(api.patch(f"{path}/one", params=query, json=body, headers=APPLY), code)

    apply("first", 201, a="1", b="1")
    assert apply("second", c="1")["data"] == {"a": "1", "b": "1", "c": "1"}
    body = config_map("one", a="2", c="1")
    response = api.patch(f"{path}/one", params={"fieldManager": "second"}, json=body, headers=APPLY)
    status = _status(response, 409, "Conflict")
    assert status["message"] == 'Apply failed with 1 conflict: conflict with "first": .data.a'
    assert status["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "first"', "field": ".data.a"}
    ]
    assert apply("second", force="true", a="2", c="1")["data"] == {"a": "2", "b": "1", "c": "1"}
    # What a manager no longer applies goes, what another one owns stays.
    assert apply("first", b="1")["data"] == {"a": "2", "b": "1", "c": "1"}
    assert apply("second", c="1")["data"] == {"b": "1", "c": "1"}


def test_server_side_apply_of_the_same_writes_nothing(api: Http, path: str) -> None:
    query = {"fieldManager": "me"}
    body = config_map("one", a="1")
    first = _ok(api.patch(f"{path}/one", params=query, json=body, headers=APPLY), 201)
    second = _ok(api.patch(f"{path}/one", params=query, json=body, headers=APPLY))
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert second["metadata"]["managedFields"] == first["metadata"]["managedFields"]


def test_server_side_apply_reads_yaml_and_needs_a_manager(api: Http, path: str) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n  a: '1'\n"
    response = api.patch(f"{path}/one", params={"fieldManager": "me"}, data=text, headers=APPLY)
    assert _ok(response, 201)["data"] == {"a": "1"}
    response = api.patch(f"{path}/one", data=text, headers=APPLY)
    assert response.status_code == 422, response.text
    assert "fieldManager" in response.json()["message"]


def test_server_side_apply_of_a_deployment_again_writes_nothing(api: Http, deployments: str) -> None:
    body, query = deployment("one"), {"fieldManager": "me", "force": "true"}
    first = _ok(api.patch(f"{deployments}/one", params=query, json=body, headers=APPLY), 201)
    again = _ok(api.patch(f"{deployments}/one", params=query, json=body, headers=APPLY))
    assert again["metadata"]["generation"] == first["metadata"]["generation"] == 1


def test_a_dry_run_shows_and_keeps_nothing(api: Http, path: str) -> None:
    shown = _ok(api.post(path, params={"dryRun": "All"}, json=config_map("one", a="1")), 201)
    assert shown["metadata"]["uid"]
    _status(api.get(f"{path}/one"), 404, "NotFound")
    kept = _ok(api.post(path, json=config_map("one", a="1")), 201)
    query = {"dryRun": "All"}
    assert _ok(api.patch(f"{path}/one", params=query, json={"data": {"a": "2"}}, headers=MERGE))["data"] == {"a": "2"}
    _ok(api.delete(f"{path}/one", params=query))
    assert _ok(api.get(f"{path}/one")) == kept


def test_preconditions_of_a_deletion(api: Http, path: str) -> None:
    metadata = _ok(api.post(path, json=config_map("one")), 201)["metadata"]
    wrong = {"preconditions": {"uid": str(uuid.uuid4())}}
    _status(api.request("DELETE", f"{path}/one", json=wrong), 409, "Conflict")
    right = {"preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}}
    _ok(api.request("DELETE", f"{path}/one", json=right))
    _status(api.get(f"{path}/one"), 404, "NotFound")


def test_a_collection_is_deleted_by_selector(api: Http, path: str) -> None:
    for name, labels in (("one", {"a": "1"}), ("two", {"a": "1"}), ("three", {"a": "2"})):
        _ok(api.post(path, json=config_map(name, labels)), 201)
    _ok(api.delete(path, params={"labelSelector": "a=1"}))
    names = {item["metadata"]["name"] for item in _ok(api.get(path, params={"labelSelector": "a"}))["items"]}
    assert names == {"three"}


def test_finalizers_hold_an_object(api: Http, path: str) -> None:
    body = config_map("one")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    _ok(api.post(path, json=body), 201)
    marked = _ok(api.delete(f"{path}/one"))["metadata"]
    assert marked["deletionTimestamp"]
    assert marked["deletionGracePeriodSeconds"] == 0
    again = _ok(api.delete(f"{path}/one"))["metadata"]
    assert again["resourceVersion"] == marked["resourceVersion"]
    _ok(api.patch(f"{path}/one", json={"metadata": {"finalizers": None}}, headers=MERGE))
    _status(api.get(f"{path}/one"), 404, "NotFound")


def test_a_new_finalizer_on_a_dying_object_is_refused(api: Http, path: str) -> None:
    body = config_map("one")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    _ok(api.post(path, json=body), 201)
    _ok(api.delete(f"{path}/one"))
    more = {"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}
    status = _status(api.patch(f"{path}/one", json=more, headers=MERGE), 422, "Invalid")
    assert "no new finalizers can be added if the object is being deleted" in status["message"]
    _ok(api.patch(f"{path}/one", json={"metadata": {"finalizers": None}}, headers=MERGE))


@pytest.mark.parametrize(("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")])
def test_propagation_becomes_a_finalizer(api: Http, path: str, policy: str, finalizer: str) -> None:
    body = config_map("one")
    body["metadata"]["finalizers"] = ["example.com/wait"]  # so that a garbage collector leaves the object in sight
    _ok(api.post(path, json=body), 201)
    marked = _ok(api.delete(f"{path}/one", params={"propagationPolicy": policy}))
    assert finalizer in marked["metadata"]["finalizers"]
    wait_for(
        lambda: (
            api.patch(f"{path}/one", json={"metadata": {"finalizers": None}}, headers=MERGE).status_code in (200, 404)
        ),
        "finalizers removed",
    )


def test_generation_counts_changes_of_the_spec(api: Http, deployments: str) -> None:
    body = deployment("one", replicas=0)
    body["spec"]["paused"] = True  # no controller has a reason to touch it
    assert _ok(api.post(deployments, json=body), 201)["metadata"]["generation"] == 1
    one = f"{deployments}/one"
    labeled = _ok(api.patch(one, json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE))
    assert labeled["metadata"]["generation"] == 1
    changed = _ok(api.patch(one, json={"spec": {"minReadySeconds": 1}}, headers=MERGE))
    assert changed["metadata"]["generation"] == 2


def test_defaults_are_filled_in(api: Http, namespace: str) -> None:
    created = _ok(api.post(f"/api/v1/namespaces/{namespace}/pods", json=pod("one", nodeName="none")), 201)
    spec = created["spec"]
    (container,) = spec["containers"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["serviceAccountName"] == "default"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePolicy"] == "File"
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"
    service = {"metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    created = _ok(api.post(f"/api/v1/namespaces/{namespace}/services", json=service), 201)
    assert created["spec"]["type"] == "ClusterIP"
    assert created["spec"]["clusterIPs"] == [created["spec"]["clusterIP"]]
    assert created["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    secret = {"metadata": {"name": "one"}, "stringData": {"a": "b"}}
    created = _ok(api.post(f"/api/v1/namespaces/{namespace}/secrets", json=secret), 201)
    assert (created["type"], created["data"], "stringData" in created) == ("Opaque", {"a": "Yg=="}, False)


INVALID: list[tuple[str, str, Any, str]] = [
    (
        "name",
        "v1/configmaps",
        {"metadata": {"name": "Upper_Case"}},
        'ConfigMap "Upper_Case" is invalid: metadata.name: Invalid value: "Upper_Case": a lowercase RFC 1123 subdomain',
    ),
    ("no name", "v1/configmaps", {"metadata": {}}, "name or generateName is required"),
    (
        "label",
        "v1/configmaps",
        {"metadata": {"name": "one", "labels": {"a": "not valid!"}}},
        'metadata.labels: Invalid value: "not valid!": a valid label must be an empty string or consist of',
    ),
    (
        "owner",
        "v1/configmaps",
        {"metadata": {"name": "one", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]}},
        "metadata.ownerReferences",
    ),
    (
        "no containers",
        "v1/pods",
        {"metadata": {"name": "one"}, "spec": {"containers": []}},
        "spec.containers: Required",
    ),
    (
        "no image",
        "v1/pods",
        {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main"}]}},
        "spec.containers[0].image: Required value",
    ),
    (
        "restart policy",
        "v1/pods",
        {"metadata": {"name": "one"}, "spec": {**pod("one")["spec"], "restartPolicy": "Sometimes"}},
        'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
    ),
    (
        "selector",
        "apps/v1/deployments",
        {
            **deployment("one"),
            "spec": {**deployment("one")["spec"], "selector": {"matchLabels": {"app": "two"}}},
        },
        "`selector` does not match template `labels`",
    ),
    ("no selector", "apps/v1/deployments", {"metadata": {"name": "one"}, "spec": {}}, "spec.selector"),
    ("no ports", "v1/services", {"metadata": {"name": "one"}, "spec": {}}, "spec.ports: Required value"),
    (
        "role",
        "rbac.authorization.k8s.io/v1/roles",
        {"metadata": {"name": "one"}, "rules": [{"resources": ["pods"], "apiGroups": [""]}]},
        "rules[0].verbs: Required value: verbs must contain at least one value",
    ),
    (
        "budget",
        "policy/v1/poddisruptionbudgets",
        {"metadata": {"name": "one"}, "spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": {}}},
        "minAvailable and maxUnavailable cannot be both set",
    ),
]


@pytest.mark.parametrize(("resource", "body", "message"), [case[1:] for case in INVALID], ids=[c[0] for c in INVALID])
def test_invalid_objects_are_refused(api: Http, namespace: str, resource: str, body: Json, message: str) -> None:
    version, _, plural = resource.rpartition("/")
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    response = api.post(f"{root}/namespaces/{namespace}/{plural}", json=body)
    assert message in _status(response, 422, "Invalid")["message"]


def test_selectors_and_references_do_not_change(api: Http, deployments: str, namespace: str) -> None:
    _ok(api.post(deployments, json=deployment("one", replicas=0)), 201)
    labels = {"app": "other"}
    body = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}
    status = _status(api.patch(f"{deployments}/one", json=body, headers=MERGE), 422, "Invalid")
    assert "field is immutable" in status["message"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    _ok(api.post(pods, json=pod("one", nodeName="none")), 201)
    body = {"spec": {"terminationGracePeriodSeconds": 7}}
    status = _status(api.patch(f"{pods}/one", json=body, headers=MERGE), 422, "Invalid")
    assert "pod updates may not change fields other than" in status["message"]


def test_unknown_fields_are_refused_or_warned_about(api: Http, deployments: str) -> None:
    body = deployment("one", replicas=0)
    body["spec"]["replicants"] = 3
    response = api.post(deployments, params={"fieldValidation": "Strict"}, json=body)
    status = _status(response, 400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.replicants"' in status["message"]
    response = api.post(deployments, json=body)
    assert "replicants" not in _ok(response, 201)["spec"]
    assert 'unknown field \\"spec.replicants\\"' in response.headers["Warning"]
    response = api.put(f"{deployments}/one", params={"fieldValidation": "Ignore"}, json=body)
    _ok(response)
    assert "Warning" not in response.headers


def test_wrong_types_are_refused(api: Http, deployments: str) -> None:
    body = deployment("one")
    body["spec"]["replicas"] = "three"
    status = _status(api.post(deployments, json=body), 400, "BadRequest")
    assert "cannot be handled as a Deployment" in status["message"]
    assert "cannot unmarshal string into Go struct field" in status["message"]


@pytest.mark.parametrize(
    ("content", "headers", "code"),
    [
        (b"{", {"Content-Type": "application/json"}, 400),
        (b"[]", {"Content-Type": "application/json"}, 400),
        (b"\xff\xfe", {"Content-Type": "application/json"}, 400),
        (b"a: [", {"Content-Type": "application/yaml"}, 400),
        (b"<a/>", {"Content-Type": "application/xml"}, 415),
        (b'{"metadata": {"name": 5}}', {"Content-Type": "application/json"}, 400),
        (b'{"metadata": "x"}', {"Content-Type": "application/json"}, 400),
        (b'{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}}', {"Content-Type": "application/json"}, 400),
    ],
)
def test_bodies_that_cannot_be_read(api: Http, path: str, content: bytes, headers: dict[str, str], code: int) -> None:
    response = api.post(path, data=content, headers=headers)
    assert response.status_code == code, response.text
    assert response.json()["kind"] == "Status"


def test_paths_and_methods_that_are_not_served(api: Http, namespace: str) -> None:
    assert api.get("/apis/none.example.com/v1/things").status_code == 404
    assert api.get(f"/api/v1/namespaces/{namespace}/nothings").status_code == 404
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/x/none").status_code == 404
    assert api.post("/api/v1/configmaps", json=config_map("x")).status_code in (404, 405)
    assert api.put(f"/api/v1/namespaces/{namespace}/configmaps", json={}).status_code == 405
    assert api.patch(f"/api/v1/namespaces/{namespace}/configmaps/x", json={}).status_code == 415


def test_a_namespace_must_exist(api: Http) -> None:
    status = _status(api.post("/api/v1/namespaces/none/configmaps", json=config_map("x")), 404, "NotFound")
    assert status["message"] == 'namespaces "none" not found'


def test_a_namespace_that_goes_takes_its_content_along(api: Http) -> None:
    name = f"test-{uuid.uuid4().hex[:10]}"
    _ok(api.post("/api/v1/namespaces", json={"metadata": {"name": name}}), 201)
    path = f"/api/v1/namespaces/{name}/configmaps"
    wait_for(
        lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").status_code == 200, "default account"
    )
    body = config_map("held")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    _ok(api.post(path, json=body), 201)
    _ok(api.post(path, json=config_map("free")), 201)
    assert api.delete(f"/api/v1/namespaces/{name}").status_code == 200
    wait_for(lambda: api.get(f"{path}/free").status_code == 404, "content deleted")
    assert _ok(api.get(f"/api/v1/namespaces/{name}"))["status"]["phase"] == "Terminating"
    status = _status(api.post(path, json=config_map("late")), 403, "Forbidden")
    assert "because it is being terminated" in status["message"]
    _ok(api.patch(f"{path}/held", json={"metadata": {"finalizers": None}}, headers=MERGE))
    wait_for(lambda: api.get(f"/api/v1/namespaces/{name}").status_code == 404, "namespace gone")
