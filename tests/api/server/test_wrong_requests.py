"""Wrong requests get the code that a real API server gives them (1.36.2); run it against one with `--kubeconfig`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.api.server.cluster import Http, Kubectl, config_map
from tests.machine import deadline_seconds

ROOT = Path(__file__).resolve().parents[3]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
AS_TEST = "fieldManager=test&force=true"
APPLIED = {"apiVersion": "v1", "kind": "ConfigMap"}
REVIEWS = "/apis/authorization.k8s.io/v1"
NO_UID = "00000000-0000-0000-0000-000000000000"
PATH = "/api/v1/namespaces/{namespace}/configmaps"
CLUSTERS = "/apis/fulcrum.dev/v1alpha1/namespaces/{namespace}/inferenceclusters"
SPEC = {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request, the code of its answer, and a part of what that says."""

    method: str = "POST"
    path: str = PATH
    query: str = ""
    body: Any = None
    """A text is sent as it is."""
    kind: str = "application/json"
    code: int
    said: str = ""
    warned: str = ""


def merge(body: Any, *, kind: str = MERGE, code: int = 422, said: str = "", query: str = "") -> Row:
    return Row(method="PATCH", path=f"{PATH}/there", query=query, body=body, kind=kind, code=code, said=said)


def put(metadata: Any, *, code: int, said: str = "") -> Row:
    body = config_map("there") | {"metadata": {"name": "there"} | metadata}
    return Row(method="PUT", path=f"{PATH}/there", body=body, code=code, said=said)


def delete(body: Any, *, code: int, said: str = "") -> Row:
    return Row(method="DELETE", path=f"{PATH}/there", body=body, code=code, said=said)


def cluster(name: str, kind: str) -> Any:
    return {"apiVersion": "fulcrum.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": SPEC}


TWICE = '{"metadata": {"name": "twice"}, "data": {"a": "1", "a": "2"}}'
YAML_TWICE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: twice}\ndata: {a: '1', a: '2'}\n"
ROWS = {
    "duplicate key, strict": Row(query="fieldValidation=Strict", body=TWICE, code=400, said='duplicate field "data.a"'),
    "duplicate key, warned": Row(query="fieldValidation=Warn", body=TWICE, code=201, warned='duplicate field "data.a"'),
    "duplicate key, ignored": Row(query="fieldValidation=Ignore", body=TWICE, code=201),
    "duplicate key in a strict patch": merge(
        '{"data": {"a": "1", "a": "2"}}', query="fieldValidation=Strict", said="duplicate field"
    ),
    "unknown field, strict": Row(
        query="fieldValidation=Strict", body=config_map("x") | {"dat": {}}, code=400, said='unknown field "dat"'
    ),
    "unknown field, warned": Row(body=config_map("x") | {"dat": {}}, code=201, warned='unknown field "dat"'),
    "unknown field in a strict merge patch": merge(
        {"dat": {}}, query="fieldValidation=Strict", said='unknown field "dat"'
    ),
    "unknown field in a strict JSON patch": merge(
        [{"op": "add", "path": "/dat", "value": {}}], kind=JSON_PATCH, query="fieldValidation=Strict", said="dat"
    ),
    "another uid in a merge patch": merge({"metadata": {"uid": NO_UID}}, said="metadata.uid"),
    "another uid in a strategic patch": merge({"metadata": {"uid": NO_UID}}, kind=STRATEGIC, said="metadata.uid"),
    "an end in a patch": merge({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, said="deletionTimestamp"),
    "a version that is none in a patch": merge({"metadata": {"resourceVersion": "abc"}}, code=500, said="ParseUint"),
    "an old version in a patch": merge({"metadata": {"resourceVersion": "1"}}, code=409, said="has been modified"),
    "another kind": Row(body=config_map("x") | {"kind": "Secret"}, code=400),
    "another version": Row(body=config_map("x") | {"apiVersion": "v2"}, code=400),
    "another kind in a merge patch": merge({"kind": "Secret"}),
    "another kind of custom resource": Row(path=CLUSTERS, body=cluster("x", "Other"), code=422, said="must be"),
    "the kind of a custom resource": Row(path=CLUSTERS, body=cluster("x", "InferenceCluster"), code=201),
    "a limit that is none": Row(method="GET", query="limit=x", code=400),
    "a limit with a fraction": Row(method="GET", query="limit=1.5", code=400),
    "a negative limit": Row(method="GET", query="limit=-1", code=200),
    "a version that is none in a list": Row(method="GET", query="resourceVersion=abc", code=400),
    "a match alone": Row(
        method="GET", query="resourceVersionMatch=Exact", code=422, said="forbidden unless resourceVersion is provided"
    ),
    "a match that is none": Row(method="GET", query="resourceVersionMatch=Near&resourceVersion=1", code=422),
    "exactly the version 0": Row(method="GET", query="resourceVersionMatch=Exact&resourceVersion=0", code=422),
    "not older than 0": Row(method="GET", query="resourceVersionMatch=NotOlderThan&resourceVersion=0", code=200),
    "another uid in a JSON patch": merge(
        [{"op": "add", "path": "/metadata/uid", "value": NO_UID}], kind=JSON_PATCH, said="metadata.uid"
    ),
    "another uid applied": merge(
        APPLIED | {"metadata": {"uid": NO_UID}}, kind=APPLY, query=AS_TEST, said="metadata.uid"
    ),
    "a uid applied to what is not there": Row(
        method="PATCH",
        path=f"{PATH}/none",
        query=AS_TEST,
        kind=APPLY,
        body=APPLIED | {"metadata": {"uid": NO_UID}},
        code=409,
    ),
    "another uid in a PUT": put({"uid": NO_UID}, code=409, said="UID in precondition"),
    "another uid in a deletion": delete({"preconditions": {"uid": NO_UID}}, code=409, said="UID in precondition"),
    "an end in a PUT": put({"deletionTimestamp": "2030-01-01T00:00:00Z"}, code=422, said="deletionTimestamp"),
    "an end applied": merge(
        APPLIED | {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}},
        kind=APPLY,
        query=AS_TEST,
        said="deletion",
    ),
    "a version that is none in a PUT": put({"resourceVersion": "abc"}, code=500, said="ParseUint"),
    "a version that is none applied": merge(
        APPLIED | {"metadata": {"resourceVersion": "abc"}}, kind=APPLY, query=AS_TEST, code=500, said="ParseUint"
    ),
    "an applied object of no kind": merge({"metadata": {"name": "there"}}, kind=APPLY, query=AS_TEST, code=400),
    "no name in a PUT": Row(method="PUT", path=f"{PATH}/there", body={"data": {}}, code=400),
    "no metadata after a patch": merge({"metadata": None}, code=400),
    "a JSON patch that is an object": merge({"a": 1}, kind=JSON_PATCH, code=400),
    "a post to an object": Row(path=f"{PATH}/there", body={}, code=405),
    "duplicate key in YAML, strict": Row(
        query="fieldValidation=Strict", body=YAML_TWICE, kind="application/yaml", code=400
    ),
    "duplicate key in YAML, warned": Row(
        body=YAML_TWICE, kind="application/yaml", code=201, warned='duplicate field "data.a"'
    ),
    "a dry run that is none": Row(query="dryRun=Some", body=config_map("x"), code=422),
    "a manager's name that is too long": Row(query=f"fieldManager={'x' * 129}", body=config_map("x"), code=422),
    "no UTF-8": Row(body=b'{"metadata":{"name":"q\xff"}}', code=400),
    "initial events of a list": Row(method="GET", query="sendInitialEvents=true", code=422),
    **{
        f"a number that is none: {query}": Row(method="GET", query=query, code=400)
        for query in (
            "limit=99999999999999999999",
            "limit=%D9%A3",
            "timeoutSeconds=x",
            "watch=1&timeoutSeconds=x",
            "watch=1&timeoutSeconds=nan",
            "watch=1&limit=x",
            "resourceVersion=-1",
            "resourceVersion=99999999999999999999999",
        )
    },
    **{
        f"deletion: {body}": delete(body, code=code)
        for body, code in (
            ({"gracePeriodSeconds": "x"}, 400),
            ({"preconditions": "x"}, 400),
            ({"preconditions": {"uid": 5}}, 400),
            ({"propagationPolicy": 5}, 400),
            ({"propagationPolicy": "Some"}, 422),
            ({"dryRun": ["Some"]}, 422),
            ({"propagationPolicy": "Foreground", "orphanDependents": True}, 422),
            ([1], 400),
        )
    },
    "a grace period that is none": Row(method="DELETE", path=f"{PATH}/there", query="gracePeriodSeconds=x", code=400),
    "a review of a text": Row(path=f"{REVIEWS}/selfsubjectaccessreviews", body={"spec": "x"}, code=400),
    "a review of a wrong type": Row(
        path=f"{REVIEWS}/selfsubjectaccessreviews", body={"spec": {"resourceAttributes": 5}}, code=400
    ),
    "a token that is a number": Row(
        path="/apis/authentication.k8s.io/v1/tokenreviews", body={"spec": {"token": 5}}, code=400
    ),
    "a token for no time": Row(
        path="/api/v1/namespaces/{namespace}/serviceaccounts/default/token",
        body={"spec": {"expirationSeconds": "x"}},
        code=400,
    ),
    "a binding to a text": Row(path="/api/v1/namespaces/{namespace}/pods/none/binding", body={"target": 5}, code=400),
}


@pytest.fixture(scope="session", autouse=True)
def crds(kubectl_of_cluster: Kubectl) -> None:
    """Fulcrum's own kinds."""
    kubectl_of_cluster("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "crds"))
    wait = f"--timeout={deadline_seconds(60):.0f}s"
    kubectl_of_cluster("wait", "--for=condition=Established", "crd", "inferenceclusters.fulcrum.dev", wait)


def send(api: Http, namespace: str, row: Row) -> requests.Response:
    data = row.body if isinstance(row.body, str | bytes | None) else json.dumps(row.body)
    path = row.path.format(namespace=namespace) + (f"?{row.query}" if row.query else "")
    return api.request(row.method, path, data=data, headers={"Content-Type": row.kind})


@pytest.mark.parametrize("name", ROWS)
def test_the_code_is_that_of_a_real_server(api: Http, namespace: str, name: str) -> None:
    api.post(PATH.format(namespace=namespace), json=config_map("there", a="1")).raise_for_status()
    row = ROWS[name]
    response = send(api, namespace, row)
    assert response.status_code == row.code, response.text
    if row.code >= 400:
        status = response.json()
        assert (status["kind"], status["code"]) == ("Status", row.code)
        assert row.said in status["message"]
    assert row.warned in response.headers.get("Warning", "").replace("\\", "")
