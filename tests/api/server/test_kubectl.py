"""The real kubectl against the server: what users type and what they see."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import time
from pathlib import Path

import pytest
from tests.api.server.cluster import Http, Json, Kubectl, config_map, deployment, pod, wait_for
from tests.machine import deadline_seconds


def _lines(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]


def test_apply_creates_configures_and_leaves_alone(kubectl: Kubectl) -> None:
    body = deployment("one", replicas=0)
    assert kubectl("apply", "-f", "-", stdin=body) == "deployment.apps/one created\n"
    assert kubectl("apply", "-f", "-", stdin=body) == "deployment.apps/one unchanged\n"
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    assert kubectl("diff", "-f", "-", stdin=deployment("one", replicas=0)) == ""
    assert kubectl("apply", "-f", "-", stdin=body) == "deployment.apps/one configured\n"
    container = kubectl.get("deployment/one")["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert container["image"] == "example.com/none:1"
    # What is taken out of the file goes, what others have added stays.
    kubectl("label", "deployment/one", "by-hand=yes")
    assert kubectl("apply", "-f", "-", stdin=deployment("one", replicas=0)) == "deployment.apps/one configured\n"
    live = kubectl.get("deployment/one")
    assert "env" not in live["spec"]["template"]["spec"]["containers"][0]
    assert live["metadata"]["labels"] == {"by-hand": "yes"}


def test_apply_server_side_conflicts_and_force(kubectl: Kubectl) -> None:
    body = config_map("one", a="1")
    out = kubectl("apply", "--server-side", "-f", "-", stdin=body)
    assert out == "configmap/one serverside-applied\n"
    kubectl("patch", "configmap/one", "--type=merge", "-p", '{"data": {"a": "2"}}', "--field-manager=other")
    error = kubectl.fails("apply", "--server-side", "-f", "-", stdin=body)
    assert 'Apply failed with 1 conflict: conflict with "other" using v1: .data.a' in error
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
    assert kubectl.get("configmap/one")["data"] == {"a": "1"}


def test_apply_prints_what_is_wrong(kubectl: Kubectl) -> None:
    body = deployment("one", replicas=0)
    body["spec"]["replicants"] = 3
    error = kubectl.fails("apply", "-f", "-", stdin=body)
    assert 'Error from server (BadRequest): error when creating "STDIN"' in error
    assert 'strict decoding error: unknown field "spec.replicants"' in error
    body = deployment("one", replicas=-1)
    error = kubectl.fails("apply", "-f", "-", stdin=body)
    assert error == (
        'The Deployment "one" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0\n'
    )


def test_apply_of_a_kind_that_is_not_there(kubectl: Kubectl) -> None:
    error = kubectl.fails("apply", "-f", "-", stdin={**config_map("one"), "apiVersion": "none.example.com/v1"})
    assert 'no matches for kind "ConfigMap" in version "none.example.com/v1"' in error
    assert "ensure CRDs are installed first" in error


def test_get_in_every_format(kubectl: Kubectl) -> None:
    body = pod("one", nodeName="none")
    body["metadata"]["labels"] = {"app": "one"}
    kubectl("create", "-f", "-", stdin=body)
    head, row = _lines(kubectl("get", "pods"))
    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["one", "0/1", "Pending", "0"]
    head, row = _lines(kubectl("get", "pods", "-o", "wide"))
    assert head[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert row[5:] == ["<none>", "none", "<none>", "<none>"]
    head, row = _lines(kubectl("get", "pods", "--show-labels"))
    assert (head[-1], row[-1]) == ("LABELS", "app=one")
    assert kubectl("get", "pods", "-o", "name") == "pod/one\n"
    assert "kind: Pod" in kubectl("get", "pod/one", "-o", "yaml")
    assert kubectl("get", "pod/one", "-o", "jsonpath={.spec.containers[0].name}") == "main"
    assert [item["metadata"]["name"] for item in kubectl.get("pods")["items"]] == ["one"]
    assert kubectl("get", "pods", "-l", "app=two") == ""
    assert _lines(kubectl("get", "pods", "-o", "custom-columns=N:.metadata.name")) == [["N"], ["one"]]
    assert 'pods "two" not found' in kubectl.fails("get", "pod/two")
    assert "one" in kubectl("get", "pods", "--sort-by=.metadata.name", "--field-selector=status.phase=Pending")


def test_get_shows_the_columns_of_each_kind(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("one", replicas=0))
    kubectl("create", "service", "clusterip", "one", "--tcp=80:8080")
    kubectl("create", "configmap", "one", "--from-literal=a=b")
    kubectl("create", "poddisruptionbudget", "one", "--selector=app=one", "--min-available=1")
    kubectl("create", "serviceaccount", "one")
    kubectl("create", "role", "one", "--verb=get", "--resource=pods")
    kubectl("create", "rolebinding", "one", "--role=one", "--serviceaccount=default:one")
    heads = {
        "deployments": ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
        "services": ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"],
        "configmaps": ["NAME", "DATA", "AGE"],
        "poddisruptionbudgets": ["NAME", "MIN AVAILABLE", "MAX UNAVAILABLE", "ALLOWED DISRUPTIONS", "AGE"],
        "serviceaccounts": None,
        "roles": ["NAME", "CREATED AT"],
        "rolebindings": ["NAME", "ROLE", "AGE"],
    }
    for resource, head in heads.items():
        lines = _lines(kubectl("get", resource))
        assert head is None or lines[0] == head
        assert "one" in [line[0] for line in lines]
    assert _lines(kubectl("get", "services"))[1][:2] == ["one", "ClusterIP"]
    everything = kubectl("get", "all")
    assert "service/one" in everything
    assert "deployment.apps/one" in everything


def test_get_watches(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "one", "--from-literal=a=b")
    command = kubectl.command("get", "configmap/one", "-w", "--no-headers")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert _read_line(process)[:2] == ["one", "1"]
            kubectl("patch", "configmap/one", "--type=merge", "-p", '{"data": {"c": "d"}}')
            assert _read_line(process)[:2] == ["one", "2"]
        finally:
            process.kill()


def _read_line(process: subprocess.Popen[bytes], seconds: float = 20) -> list[str]:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        assert ready, f"no line, only {line!r}"
        line += os.read(process.stdout.fileno(), 1)
    return line.decode().split()


def test_describe(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=pod("one", nodeName="none"))
    uid = kubectl.get("pod/one")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": kubectl.namespace, "uid": uid,
        },
        "reason": "Tested", "message": "it was described", "type": "Normal", "count": 1,
        "source": {"component": "test"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    kubectl("create", "-f", "-", stdin=event)
    text = kubectl("describe", "pod/one")
    assert re.search(r"^Name: +one$", text, re.MULTILINE)
    assert re.search(r"Tested +.* test +it was described", text)
    kubectl("apply", "-f", "-", stdin=deployment("one", replicas=0))
    assert re.search(r"^Selector: +app=one$", kubectl("describe", "deployment/one"), re.MULTILINE)
    assert "Labels:" in kubectl("describe", "namespace", kubectl.namespace)
    assert "it was described" in kubectl("get", "events")
    assert "it was described" in kubectl("events")
    new = json.loads(kubectl("get", "events.v1.events.k8s.io", "-o", "json"))["items"]
    notes = [item for item in new if item["note"] == "it was described"]
    assert [(item["regarding"]["name"], item["apiVersion"]) for item in notes] == [("one", "events.k8s.io/v1")]


def test_explain_built_in_kinds(kubectl_of_cluster: Kubectl) -> None:
    text = kubectl_of_cluster("explain", "pod.spec.containers")
    assert "FIELD: containers <[]Container>" in text
    assert "terminationMessagePolicy" in text
    assert "List of containers belonging to the pod" in text
    text = kubectl_of_cluster("explain", "deployment.spec.strategy", "--recursive")
    assert "maxSurge" in text
    assert 'field "none" does not exist' in kubectl_of_cluster.fails("explain", "pod.spec.none")


def test_patch_in_every_format(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("one", replicas=0))
    env = '{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"A","value":"1"}]}]}}}}'
    kubectl("patch", "deployment/one", "-p", env)
    kubectl("patch", "deployment/one", "--type=merge", "-p", '{"metadata": {"annotations": {"a": "b"}}}')
    operations = '[{"op": "add", "path": "/spec/minReadySeconds", "value": 5}]'
    kubectl("patch", "deployment/one", "--type=json", "-p", operations)
    assert "(no change)" in kubectl("patch", "deployment/one", "--type=json", "-p", operations)
    live = kubectl.get("deployment/one")
    assert live["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/none:1"
    assert live["metadata"]["annotations"]["a"] == "b"
    assert live["spec"]["minReadySeconds"] == 5


def test_scale_label_annotate_set_and_edit(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("one", replicas=0))
    kubectl("scale", "deployment/one", "--replicas=2", "--current-replicas=0")
    kubectl("label", "deployment/one", "a=b")
    assert "already has a value" in kubectl.fails("label", "deployment/one", "a=c")
    kubectl("label", "deployment/one", "a=c", "--overwrite")
    kubectl("annotate", "deployment/one", "d=e")
    kubectl("set", "image", "deployment/one", "main=example.com/none:2")
    live = kubectl.get("deployment/one")
    assert live["spec"]["replicas"] == 2
    assert live["metadata"]["labels"] == {"a": "c"}
    assert live["metadata"]["annotations"]["d"] == "e"
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/none:2"
    kubectl("label", "deployment/one", "a-")
    assert "labels" not in kubectl.get("deployment/one")["metadata"]
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/replicas: 2/replicas: 0/' \"$1\"\n")
    editor.chmod(0o755)
    environment = {**os.environ, "KUBE_EDITOR": str(editor)}
    done = subprocess.run(
        kubectl.command("edit", "deployment/one"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline_seconds(180),
        check=True,
    )
    assert done.stdout == "deployment.apps/one edited\n"
    assert kubectl.get("deployment/one")["spec"]["replicas"] == 0


def test_create_with_generators(kubectl: Kubectl) -> None:
    # kubectl sends these as protobuf.
    kubectl("create", "deployment", "one", "--image=example.com/none:1", "--replicas=0", "--port=80")
    kubectl("create", "secret", "generic", "one", "--from-literal=a=b")
    kubectl("create", "configmap", "one", "--from-literal=a=b")
    kubectl("expose", "deployment/one", "--port=80", "--target-port=8080")
    live = kubectl.get("deployment/one")
    assert live["spec"]["replicas"] == 0
    assert live["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert kubectl.get("secret/one")["data"] == {"a": "Yg=="}
    assert kubectl.get("configmap/one")["data"] == {"a": "b"}
    assert kubectl.get("service/one")["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 8080}]
    assert "already exists" in kubectl.fails("create", "configmap", "one")
    assert kubectl("create", "serviceaccount", "one") == "serviceaccount/one created\n"
    token = kubectl("create", "token", "one").strip()
    assert token.count(".") == 2
    kubectl("create", "role", "one", "--verb=get,list", "--resource=pods,deployments.apps")
    rules = kubectl.get("role/one")["rules"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]} in rules
    assert {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]} in rules
    kubectl(
        "run", "one", "--image=example.com/none:1", "--restart=Never", "--overrides", '{"spec":{"nodeName":"none"}}'
    )
    assert kubectl.get("pod/one")["spec"]["restartPolicy"] == "Never"


def test_delete_and_wait(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "one")
    assert "deleted" in kubectl("delete", "configmap/one")
    assert 'configmaps "one" not found' in kubectl.fails("delete", "configmap/one")
    assert kubectl("delete", "configmap/one", "--ignore-not-found") == ""
    body = config_map("held")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    kubectl("create", "-f", "-", stdin=body)
    process = subprocess.Popen(
        kubectl.command("delete", "configmap/held"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: "deletionTimestamp" in kubectl.get("configmap/held")["metadata"], "marked")
        assert process.poll() is None
        kubectl("patch", "configmap/held", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        assert process.wait(deadline_seconds(90)) == 0
    finally:
        process.kill()
        process.communicate()


def test_wait_for_a_condition(kubectl: Kubectl, api: Http) -> None:
    body = deployment("one", replicas=0)
    body["spec"]["paused"] = True
    kubectl("create", "-f", "-", stdin=body)
    process = subprocess.Popen(
        kubectl.command("wait", "--for=condition=Tested", "deployment/one", f"--timeout={deadline_seconds(120):.0f}s"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        time.sleep(0.5)  # so that it most likely waits already; it must succeed either way
        condition = {
            "type": "Tested", "status": "True", "reason": "Test", "message": "",
            "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        response = api.patch(
            f"/apis/apps/v1/namespaces/{kubectl.namespace}/deployments/one/status",
            json={"status": {"conditions": [condition]}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert response.status_code == 200, response.text
        out, error = process.communicate(timeout=deadline_seconds(120))
        assert out == b"deployment.apps/one condition met\n", error
    finally:
        process.kill()
        process.wait()
    assert "timed out" in kubectl.fails("wait", "--for=condition=Never", "deployment/one", "--timeout=1s")
    kubectl("wait", "--for=create", "deployment/one", f"--timeout={deadline_seconds(60):.0f}s")


def test_who_may_do_what(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "delete", "pods") == "yes\n"
    user = f"system:serviceaccount:{kubectl.namespace}:one"
    assert kubectl.run("auth", "can-i", "list", "pods", f"--as={user}").stdout == "no\n"
    kubectl("create", "serviceaccount", "one")
    kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
    kubectl("create", "rolebinding", "one", "--role=reader", f"--serviceaccount={kubectl.namespace}:one")
    wait_for(lambda: kubectl.run("auth", "can-i", "list", "pods", f"--as={user}").stdout == "yes\n", "allowed")
    assert kubectl.run("auth", "can-i", "list", "secrets", f"--as={user}").stdout == "no\n"
    assert re.search(r"^pods +\[\] +\[\] +\[list\]$", kubectl("auth", "can-i", "--list", f"--as={user}"), re.MULTILINE)
    assert "system:authenticated" in kubectl("auth", "whoami")


def test_discovery(kubectl_of_cluster: Kubectl) -> None:
    rows = {line.split()[0]: line for line in kubectl_of_cluster("api-resources").splitlines()}
    assert re.search(r"^deployments +deploy +apps/v1 +true +Deployment$", rows["deployments"])
    assert re.search(r"^namespaces +ns +v1 +false +Namespace$", rows["namespaces"])
    versions = kubectl_of_cluster("api-versions").split()
    assert {"v1", "apps/v1", "apiextensions.k8s.io/v1", "rbac.authorization.k8s.io/v1"} <= set(versions)
    version: Json = json.loads(kubectl_of_cluster("version", "-o", "json"))
    assert version["serverVersion"]["major"] == "1"
    assert kubectl_of_cluster("get", "--raw", "/readyz") == "ok"
    assert "apiserver_request_total" in kubectl_of_cluster("get", "--raw", "/metrics")


@pytest.mark.parametrize("path", ["/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1"])
def test_classic_discovery(api: Http, path: str) -> None:
    document = api.get(path).json()
    assert document["kind"] in ("APIVersions", "APIGroupList", "APIGroup", "APIResourceList")


def test_aggregated_discovery(api: Http) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    response = api.get("/apis", headers={"Accept": accept})
    assert "as=APIGroupDiscoveryList" in response.headers["Content-Type"]
    apps = next(item for item in response.json()["items"] if item["metadata"]["name"] == "apps")
    resources = {entry["resource"]: entry for version in apps["versions"] for entry in version["resources"]}
    assert resources["deployments"]["scope"] == "Namespaced"
    assert {sub["subresource"] for sub in resources["deployments"]["subresources"]} >= {"status", "scale"}
