"""What is special about Pods, Services, Deployments and disruption budgets at the API."""

from __future__ import annotations

import http.server
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.api.server.cluster import Http, Json, Kubectl, deployment, kubelet_context, pod, wait_for
from tests.machine import deadline_seconds

MERGE = {"Content-Type": "application/merge-patch+json"}


def _ok(response: requests.Response, code: int = 200) -> Json:
    assert response.status_code == code, response.text
    obj: Json = response.json()
    return obj


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def services(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services"


def test_a_pod_on_a_node_ends_gracefully(api: Http, pods: str) -> None:
    _ok(api.post(pods, json=pod("one", nodeName="none", terminationGracePeriodSeconds=20)), 201)
    marked = _ok(api.delete(f"{pods}/one"))["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 20
    assert marked["deletionTimestamp"]
    # A second deletion can only shorten the wait.
    longer = _ok(api.delete(f"{pods}/one", params={"gracePeriodSeconds": 60}))["metadata"]
    assert longer["deletionTimestamp"] == marked["deletionTimestamp"]
    shorter = _ok(api.delete(f"{pods}/one", params={"gracePeriodSeconds": 10}))["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 10
    assert shorter["deletionTimestamp"] < marked["deletionTimestamp"]
    # The kubelet's last word.
    _ok(api.delete(f"{pods}/one", params={"gracePeriodSeconds": 0}))
    assert api.get(f"{pods}/one").status_code == 404


def test_an_ended_pod_goes_at_once(api: Http, pods: str) -> None:
    _ok(api.post(pods, json=pod("one", nodeName="none")), 201)
    _ok(api.patch(f"{pods}/one/status", json={"status": {"phase": "Failed"}}, headers=MERGE))
    _ok(api.delete(f"{pods}/one"))
    assert api.get(f"{pods}/one").status_code == 404


def test_status_of_a_pod(api: Http, pods: str, kubectl: Kubectl) -> None:
    _ok(api.post(pods, json=pod("one", nodeName="none")), 201)
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    last = {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}}
    container = {
        "name": "main", "ready": False, "restartCount": 2, "state": state, "lastState": last,
        "image": "example.com/none:1", "imageID": "",
    }  # fmt: skip
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "podIP": "10.1.2.3", "conditions": [ready], "containerStatuses": [container]}
    body = {"status": status, "spec": {"nodeName": "other"}}
    obj = _ok(api.patch(f"{pods}/one/status", json=body, headers=MERGE))
    assert (obj["spec"]["nodeName"], obj["status"]["podIP"]) == ("none", "10.1.2.3")
    row = kubectl("get", "pod/one", "-o", "wide", "--no-headers").split()
    assert row[:4] == ["one", "0/1", "CrashLoopBackOff", "2"]
    assert "10.1.2.3" in row
    text = kubectl("describe", "pod/one")
    assert "CrashLoopBackOff" in text
    assert "Exit Code:    3" in text
    # A strategic patch merges conditions by type.
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    obj = _ok(api.patch(f"{pods}/one/status", json={"status": {"conditions": [scheduled]}}, headers=headers))
    assert {entry["type"] for entry in obj["status"]["conditions"]} == {"Ready", "PodScheduled"}


def test_binding(api: Http, pods: str, external_kubeconfig: object) -> None:
    if external_kubeconfig is not None:
        pytest.skip("a scheduler would be quicker")
    _ok(api.post(pods, json=pod("one")), 201)
    target = {"apiVersion": "v1", "kind": "Node", "name": "some-node"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "one"}, "target": target}
    _ok(api.post(f"{pods}/one/binding", json=body), 201)
    obj = _ok(api.get(f"{pods}/one"))
    assert obj["spec"]["nodeName"] == "some-node"
    assert [entry["type"] for entry in obj["status"]["conditions"]] == ["PodScheduled"]
    assert api.post(f"{pods}/one/binding", json=body).status_code == 409
    selected = _ok(api.get(pods, params={"fieldSelector": "spec.nodeName=some-node"}))["items"]
    assert [item["metadata"]["name"] for item in selected] == ["one"]
    assert _ok(api.get(pods, params={"fieldSelector": "spec.nodeName="}))["items"] == []


def _ready_pod(api: Http, pods: str, name: str) -> None:
    body = pod(name, nodeName="none")
    body["metadata"]["labels"] = {"app": "budget"}
    _ok(api.post(pods, json=body), 201)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "conditions": [ready]}
    _ok(api.patch(f"{pods}/{name}/status", json={"status": status}, headers=MERGE))


def test_eviction_respects_budgets(api: Http, pods: str, namespace: str, external_kubeconfig: object) -> None:
    if external_kubeconfig is not None:
        pytest.skip("needs Pods that a node runs")
    for name in ("one", "two"):
        _ready_pod(api, pods, name)
    budget = {
        "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "budget"}}},
    }
    _ok(api.post(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", json=budget), 201)

    def evict(name: str) -> requests.Response:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        return api.post(f"{pods}/{name}/eviction", json=body)

    _ok(evict("one"), 201)
    assert _ok(api.get(f"{pods}/one"))["metadata"]["deletionTimestamp"]
    refused = evict("two")
    assert refused.status_code == 429
    status = refused.json()
    assert status["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert status["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget budget needs 1 healthy pods and has 1 currently",
        }
    ]
    assert "deletionTimestamp" not in _ok(api.get(f"{pods}/two"))["metadata"]


def test_scale_of_a_deployment(api: Http, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    _ok(api.post(path, json=deployment("one", replicas=0)), 201)
    scale = _ok(api.get(f"{path}/one/scale"))
    assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 0})
    assert scale["status"] == {"selector": "app=one"}, "no Pods: their number is left out"
    scaled = _ok(api.patch(f"{path}/one/scale", json={"spec": {"replicas": 1}}, headers=MERGE))
    assert scaled["spec"]["replicas"] == 1
    obj = _ok(api.get(f"{path}/one"))
    assert obj["spec"]["replicas"] == 1
    assert obj["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/none:1"
    managers = {entry.get("subresource", ""): entry["fieldsV1"] for entry in obj["metadata"]["managedFields"]}
    assert managers["scale"] == {"f:spec": {"f:replicas": {}}}
    response = api.patch(f"{path}/one/scale", json={"spec": {"replicas": -1}}, headers=MERGE)
    assert response.status_code == 422


def test_service_addresses(api: Http, services: str) -> None:
    def create(name: str, **spec: Any) -> requests.Response:
        return api.post(services, json={"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}})

    first, second = _ok(create("one"), 201)["spec"]["clusterIP"], _ok(create("two"), 201)["spec"]["clusterIP"]
    assert first != second
    assert _ok(create("headless", clusterIP="None"), 201)["spec"]["clusterIP"] == "None"
    taken = create("three", clusterIP=first)
    assert taken.status_code == 422
    assert "provided IP is already allocated" in taken.json()["message"]
    outside = create("four", clusterIP="192.0.2.1")
    assert outside.status_code == 422
    assert (
        "failed to allocate IP 192.0.2.1: the provided network does not match the current range"
        in outside.json()["message"]
    )
    moved = api.patch(f"{services}/one", json={"spec": {"clusterIP": second}}, headers=MERGE)
    assert moved.status_code == 422
    assert "may not change once set" in moved.json()["message"]
    # An update without the address keeps it.
    body = {"metadata": {"name": "one"}, "spec": {"ports": [{"port": 81}]}}
    assert _ok(api.put(f"{services}/one", json=body))["spec"]["clusterIP"] == first
    _ok(api.delete(f"{services}/one"))
    assert _ok(create("five", clusterIP=first), 201)["spec"]["clusterIP"] == first


class _Kubelet(http.server.BaseHTTPRequestHandler):
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"line one\nline two\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        return


@pytest.fixture
def kubelet(api: Http, external_kubeconfig: object, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A Node whose kubelet serves logs: its name, and the paths that were asked for."""
    if external_kubeconfig is not None:
        pytest.skip("real nodes have kubelets of their own")
    paths: list[str] = []
    handler = type("Handler", (_Kubelet,), {"paths": paths})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = kubelet_context(tmp_path).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    name = f"node-{uuid.uuid4().hex[:8]}"
    _ok(api.post("/api/v1/nodes", json={"metadata": {"name": name}}), 201)
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
        "conditions": [
            {
                "type": "Ready", "status": "True", "reason": "Test", "message": "",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }  # fmt: skip
    _ok(api.patch(f"/api/v1/nodes/{name}/status", json={"status": status}, headers=MERGE))
    yield name, paths
    api.delete(f"/api/v1/nodes/{name}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_logs_come_from_the_kubelet(api: Http, pods: str, kubelet: tuple[str, list[str]], kubectl: Kubectl) -> None:
    node, paths = kubelet
    _ok(api.post(pods, json=pod("one", nodeName=node)), 201)
    assert kubectl("logs", "one", "--tail=5", "--timestamps") == "line one\nline two\n"
    assert paths[-1].startswith(f"/containerLogs/{kubectl.namespace}/one/main?")
    assert "tailLines=5" in paths[-1]
    assert "timestamps=true" in paths[-1]
    assert kubectl("logs", "one", "-f", "-c", "main") == "line one\nline two\n"
    assert "follow=true" in paths[-1]
    assert "container nothing is not valid for pod one" in kubectl.fails("logs", "one", "-c", "nothing")
    assert 'pods "two" not found' in kubectl.fails("logs", "two")
    assert node in kubectl("get", "nodes", "-o", "wide")
    assert "Ready" in kubectl("describe", "node", node)


@pytest.mark.parametrize("policy", [None, "IfHealthyBudget", "AlwaysAllow"])
def test_eviction_of_an_unhealthy_pod(
    api: Http, pods: str, namespace: str, external_kubeconfig: object, policy: str | None
) -> None:
    allowed = policy == "AlwaysAllow"
    if external_kubeconfig is not None:
        pytest.skip("needs Pods that a node runs")
    _ready_pod(api, pods, "one")
    _ready_pod(api, pods, "two")
    not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    _ok(api.patch(f"{pods}/two/status", json={"status": {"conditions": [not_ready]}}, headers=MERGE))
    spec: Json = {"minAvailable": 2, "selector": {"matchLabels": {"app": "budget"}}}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    _ok(api.post(budgets, json={"metadata": {"name": "budget"}, "spec": spec}), 201)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "two", "namespace": namespace}}
    assert api.post(f"{pods}/two/eviction", json=body).status_code == (201 if allowed else 429)
    if allowed:
        target = _ok(api.get(f"{pods}/two"))["status"]["conditions"][-1]
        assert (target["type"], target["reason"]) == ("DisruptionTarget", "EvictionByEvictionAPI")
    # With enough healthy Pods an unhealthy one may always go.
    _ok(api.patch(f"{budgets}/budget", json={"spec": {"minAvailable": 1}}, headers=MERGE))
    if not allowed:
        assert api.post(f"{pods}/two/eviction", json=body).status_code == 201


def test_kubectl_cordons_and_drains(
    api: Http, pods: str, namespace: str, kubectl: Kubectl, external_kubeconfig: object
) -> None:
    if external_kubeconfig is not None:
        pytest.skip("would drain a node of yours")
    node = f"drained-{uuid.uuid4().hex[:8]}"
    _ok(api.post("/api/v1/nodes", json={"metadata": {"name": node}}), 201)
    kubectl("cordon", node)
    assert _ok(api.get(f"/api/v1/nodes/{node}"))["spec"]["unschedulable"] is True
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    for name in ("one", "two"):
        body = pod(name, nodeName=node)
        body["metadata"]["labels"] = {"app": "budget"}
        _ok(api.post(pods, json=body), 201)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "conditions": [ready]}
        _ok(api.patch(f"{pods}/{name}/status", json={"status": status}, headers=MERGE))
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "budget"}}}
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    _ok(api.post(budgets, json={"metadata": {"name": "budget"}, "spec": budget}), 201)
    options = ("--force", "--timeout=3s", "--pod-selector=app=budget")
    refused = kubectl.fails("drain", node, *options)
    assert "Cannot evict pod as it would violate the pod's disruption budget" in refused
    marked = [item for item in _ok(api.get(pods))["items"] if "deletionTimestamp" in item["metadata"]]
    assert len(marked) == 1
    _ok(api.delete(f"{pods}/{marked[0]['metadata']['name']}", params={"gracePeriodSeconds": 0}))
    _ok(api.delete(f"{budgets}/budget"))
    drain = threading.Thread(target=lambda: kubectl("drain", node, "--force", f"--timeout={deadline_seconds(60):.0f}s"))
    drain.start()
    (left,) = [item["metadata"]["name"] for item in _ok(api.get(pods))["items"]]
    wait_for(lambda: "deletionTimestamp" in _ok(api.get(f"{pods}/{left}"))["metadata"], "evicted")
    _ok(api.delete(f"{pods}/{left}", params={"gracePeriodSeconds": 0}))
    drain.join(deadline_seconds(60))
    assert not drain.is_alive()
    assert _ok(api.get(pods))["items"] == []
    kubectl("uncordon", node)
    assert "unschedulable" not in _ok(api.get(f"/api/v1/nodes/{node}"))["spec"]
    api.delete(f"/api/v1/nodes/{node}")


def test_every_pod_gets_a_token_and_five_minutes_on_a_lost_node(api: Http, pods: str) -> None:
    spec = _ok(api.post(pods, json=pod("one")), 201)["spec"]
    (volume,) = [entry for entry in spec["volumes"] if entry["name"].startswith("kube-api-access-")]
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        "serviceAccountToken", "configMap", "downwardAPI",
    ]  # fmt: skip
    mount = {"name": volume["name"], "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    assert spec["containers"][0]["volumeMounts"] == [mount]
    lost = [("not-ready", 300), ("unreachable", 300)]
    assert [(entry["key"].rpartition("/")[2], entry["tolerationSeconds"]) for entry in spec["tolerations"]] == lost
    own = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
    body = pod("two", automountServiceAccountToken=False, tolerations=own)
    spec = _ok(api.post(pods, json=body), 201)["spec"]
    assert "volumes" not in spec
    assert [entry.get("tolerationSeconds") for entry in spec["tolerations"]] == [None, 300]
