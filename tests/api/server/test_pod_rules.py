"""What a real server refuses in a Pod, in its words, and the one form in which it keeps quantities and times."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.server.cluster import Http, Json, config_map, pod

MERGE = {"Content-Type": "application/merge-patch+json"}
HTTP = {"httpGet": {"path": "/", "port": 80}}


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def with_container(**fields: Any) -> Json:
    body = pod("one")
    body["spec"]["containers"][0] |= fields
    return body


def with_amounts(**resources: dict[str, str]) -> Json:
    return with_container(resources=resources)


CASES = [
    (
        with_amounts(requests={"cpu": "2"}, limits={"cpu": "1"}),
        'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    (
        with_amounts(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "2"}),
        'spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2',
    ),
    (
        with_amounts(requests={"nvidia.com/gpu": "1"}),
        "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
    ),
    (
        with_amounts(limits={"nvidia.com/gpu": "0.5"}),
        'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
    ),
    (
        with_amounts(limits={"memory": "-1"}),
        'spec.containers[0].resources.limits[memory]: Invalid value: "-1": must be greater than or equal to 0',
    ),
    (
        with_amounts(limits={"gpu": "1"}),
        'spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully',
    ),
    (with_container(livenessProbe={"periodSeconds": 1}), "livenessProbe: Required value: must specify a handler type"),
    (
        with_container(livenessProbe={**HTTP, "tcpSocket": {"port": 80}}),
        "livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
    ),
    (
        with_container(livenessProbe={**HTTP, "successThreshold": 2}),
        "livenessProbe.successThreshold: Invalid value: 2: must be 1",
    ),
    (
        with_container(readinessProbe={"httpGet": {"port": 70000}}),
        "readinessProbe.httpGet.port: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ),
    (
        with_container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
        'spec.containers[0].ports[1].name: Duplicate value: "a"',
    ),
    (
        with_container(ports=[{"containerPort": 0x10000}]),
        "ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
    ),
    (with_container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), 'volumeMounts[0].name: Not found: "v"'),
    (
        with_container(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        'env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
    ),
    (
        pod("one", volumes=[{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
        'spec.volumes[1].name: Duplicate value: "v"',
    ),
    (
        pod("one", tolerations=[{"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]),
        "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when",
    ),
]


@pytest.mark.parametrize(("body", "message"), CASES, ids=range(len(CASES)))
def test_a_wrong_pod_is_refused(api: Http, pods: str, body: Json, message: str) -> None:
    response = api.post(pods, json=body)
    assert response.status_code == 422, response.text
    assert message in response.json()["message"]


def test_a_wrong_template_is_refused(api: Http, namespace: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": with_container(livenessProbe={})["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"metadata": {"name": "d"}, "spec": spec}
    template["spec"]["containers"][0]["livenessProbe"] = {"periodSeconds": 5}
    response = api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", json=body)
    assert response.status_code == 422, response.text
    where = "spec.template.spec.containers[0].livenessProbe"
    assert f"{where}: Required value: must specify a handler type" in response.json()["message"]


def test_what_is_no_quantity_cannot_be_read(api: Http, pods: str) -> None:
    response = api.post(pods, json=with_amounts(limits={"cpu": "abc"}))
    assert response.status_code == 400
    assert 'Pod in version "v1" cannot be handled as a Pod: quantities must match' in response.json()["message"]


def test_quantities_are_canonical(api: Http, pods: str) -> None:
    body = with_amounts(limits={"cpu": "1000m", "memory": "0.5Gi"}, requests={"cpu": "0.25"})
    body["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}}]
    created = api.post(pods, json=body)
    assert created.status_code == 201, created.text
    spec = created.json()["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "1", "memory": "512Mi"},
        "requests": {"cpu": "250m", "memory": "512Mi"},
    }
    assert spec["volumes"][0]["emptyDir"]["sizeLimit"] == "2Gi"


def test_the_same_amount_in_another_form_is_no_change(api: Http, namespace: str, pods: str) -> None:
    apply = {"Content-Type": "application/apply-patch+yaml"}
    body = {**with_amounts(limits={"cpu": "1000m"}), "apiVersion": "v1", "kind": "Pod"}
    first = api.patch(f"{pods}/one?fieldManager=a", json=body, headers=apply)
    assert first.status_code == 201, first.text
    body = {**with_amounts(limits={"cpu": "1"}), "apiVersion": "v1", "kind": "Pod"}
    second = api.patch(f"{pods}/one?fieldManager=b", json=body, headers=apply)  # no conflict: the value is the same
    assert second.status_code == 200, second.text
    assert second.json()["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}


def test_times_are_utc_and_whole_seconds(api: Http, namespace: str, pods: str) -> None:
    assert api.post(pods, json=pod("one")).status_code == 201
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T02:00:00.75+02:00"}
    patched = api.patch(f"{pods}/one/status", json={"status": {"conditions": [ready]}}, headers=MERGE).json()
    assert patched["status"]["conditions"][-1]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T02:00:00.5+02:00"}}
    assert api.post(leases, json=lease).json()["spec"]["renewTime"] == "2026-01-01T00:00:00.500000Z"
    lease = {"metadata": {"name": "m"}, "spec": {"renewTime": "yesterday"}}
    assert api.post(leases, json=lease).status_code == 400


def test_a_pod_keeps_its_tolerations(api: Http, pods: str) -> None:
    created = api.post(pods, json=pod("one")).json()
    added = [*created["spec"]["tolerations"], {"key": "new", "operator": "Exists"}]
    assert api.patch(f"{pods}/one", json={"spec": {"tolerations": added}}, headers=MERGE).status_code == 200
    response = api.patch(f"{pods}/one", json={"spec": {"tolerations": added[1:]}}, headers=MERGE)
    assert response.status_code == 422
    assert "existing toleration can not be modified except its tolerationSeconds" in response.json()["message"]


def test_large_objects_are_refused(api: Http, namespace: str, pods: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    response = api.post(path, json=config_map("big", text="x" * (1024 * 1024 + 1)))
    assert response.status_code == 422
    assert "[]: Too long: may not be more than 1048576 bytes" in response.json()["message"]
    assert api.post(path, json=config_map("fits", text="x" * (1024 * 1024))).status_code == 201
    body = with_container(args=["x" * (1600 * 1024)])
    response = api.post(pods, json=body)
    assert (response.status_code, response.json()["message"]) == (500, "etcdserver: request is too large")


def test_a_status_in_an_apply_is_left_out(api: Http, pods: str) -> None:
    apply = {"Content-Type": "application/apply-patch+yaml"}
    body = {**pod("one"), "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    created = api.patch(f"{pods}/one?fieldManager=a", json=body, headers=apply).json()
    assert created["status"]["phase"] == "Pending"
    (entry,) = created["metadata"]["managedFields"]
    assert "f:status" not in entry["fieldsV1"]


def test_what_users_name_like_a_quantity_is_left_alone(api: Http, namespace: str) -> None:
    names = {"sizeLimit": "big", "startTime": "never"}
    service = {"metadata": {"name": "s", "labels": names}, "spec": {"selector": names, "ports": [{"port": 80}]}}
    created = api.post(f"/api/v1/namespaces/{namespace}/services", json=service)
    assert created.status_code == 201, created.text
    assert created.json()["spec"]["selector"] == created.json()["metadata"]["labels"] == names
