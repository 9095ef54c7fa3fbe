"""The life of a release by real helm and kubectl: install, test, upgrade without a loss, uninstall to nothing."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.charts.release import OPERATOR_NAMESPACE, Release, left_over, local_release
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CLUSTER: dict[str, Any] = {
    "model": {"name": "m", "maxModelLen": 4096},
    "slo": {"ttft": "30s", "tpot": "10s"},
    "pools": [
        {
            "name": "cpu",
            "accelerator": "cpu",
            "workers": {"min": 2, "max": 2},
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "worker",
                            "command": [sys.executable, str(Path(__file__).with_name("loopback_worker.py"))],
                        }
                    ]
                }
            },
        }
    ],
    "balance": {"mode": "Manual", "ratio": {"prefill": 1, "decode": 1}},
    "gateway": {"replicas": 1},
    "test": {"timeoutSeconds": 60},
}


class Load:
    """Clients that ask without a pause, each request on a connection of its own; every failure is kept."""

    def __init__(self, address: str, *, clients: int = 4) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._url = f"http://{address}:8080/v1/chat/completions"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(deadline_seconds(60))

    def _ask(self, client: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            stream = number % 2 == 0
            question = [{"role": "user", "content": f"{client} {number}"}]
            body = {"model": "chat", "messages": question, "max_tokens": 10, "stream": stream}
            request = urllib.request.Request(
                self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )  # fmt: skip
            try:
                with urllib.request.urlopen(request, timeout=deadline_seconds(60)) as reply:
                    text = reply.read().decode()
                whole = text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]
                if whole:
                    self.answered += 1
                else:
                    self.failures.append(text)
            except (OSError, ValueError) as error:
                said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                self.failures.append(f"{error!r} {said}")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with local_release(tmp_path_factory.mktemp("release"), CLUSTER) as release:
        yield release


def test_install_brings_the_operator_up_as_a_pod_of_its_deployment(release: Release) -> None:
    release.helm_operator("install", "networkPolicy.enabled=true")
    deployment = release.read("deployment", "fulcrum-operator", "-n", OPERATOR_NAMESPACE)
    assert deployment["status"]["availableReplicas"] == 1
    (pod,) = release.read("pods", "-n", OPERATOR_NAMESPACE)["items"]
    (replicas,) = pod["metadata"]["ownerReferences"]
    assert replicas["kind"] == "ReplicaSet"
    assert pod["spec"]["serviceAccountName"] == "fulcrum-operator"
    lease = release.read("lease", "fulcrum-operator", "-n", OPERATOR_NAMESPACE)
    release.until(
        "the operator leads",
        lambda: (
            release.read("lease", "fulcrum-operator", "-n", OPERATOR_NAMESPACE).get("spec", {}).get("holderIdentity")
            == pod["metadata"]["name"]
        ),
    )
    assert lease["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_a_cluster_becomes_available_and_helm_test_asks_it(release: Release) -> None:
    release.helm_cluster("install")
    release.wait_available()
    said = release.run("helm", "test", "chat", "-n", "default", "--timeout", "90s", "--logs")
    assert "Phase:          Succeeded" in said
    assert "answered: 'word" in said


def test_upgrades_lose_no_request(release: Release) -> None:
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in workers(release)}
    with Load(release.address()) as load:
        # The operator's Pod is replaced, and nothing else moves.
        release.helm_operator("upgrade", "networkPolicy.enabled=true", "dashboard.enabled=true",
                              "operator.resources.requests.memory=260Mi")  # fmt: skip
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in workers(release)} == uids
        # Other gateways: every one of them is replaced.
        before = gateways(release)
        release.helm_cluster("upgrade", "slo.ttft=20s", "gateway.replicas=2")
        release.until("all gateways are new", lambda: len(gateways(release)) == 2 and not before & gateways(release))
        # One worker more; the new one serves before the release counts as upgraded.
        release.helm_cluster("upgrade", "slo.ttft=20s", "gateway.replicas=2", "pools[0].workers.max=3",
                             "balance.ratio.decode=2", *POOL)  # fmt: skip
        release.until("3 workers", lambda: release.read("ic", "chat")["status"].get("ready") == "3/3")
        answered = load.answered
        release.until("answers go on", lambda: load.answered > answered + 8)
    assert load.failures == []
    assert load.answered > 20


def test_the_dashboard_answers_at_its_service_with_decisions_and_workers(release: Release) -> None:
    address = release.read("service", "fulcrum-operator-dashboard", "-n", OPERATOR_NAMESPACE)["spec"]["clusterIP"]
    url = f"http://{address}:8081/dashboard"
    release.until("the operator leads", lambda: operator_clusters(release) == 1)
    with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as page:
        assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    shown: dict[str, Any] = {"workers": []}
    with urllib.request.urlopen(f"{url}/events?cluster=default/chat", timeout=deadline_seconds(30)) as stream:
        # The first documents can be from before somebody looked at this cluster.
        while not (shown["workers"] and shown.get("detail", {}).get("decisions")):
            if stream.readline() == b"event: cluster\n":
                shown |= json.loads(stream.readline().removeprefix(b"data: "))
    assert {worker["name"] for worker in shown["workers"]} == {pod["metadata"]["name"] for pod in workers(release)}
    assert shown["detail"]["row"]["ratio"] == release.read("ic", "chat")["status"]["ratio"]
    assert "WorkerCreated" in {decision["reason"] for decision in shown["detail"]["decisions"]}


def test_rollback_goes_back(release: Release) -> None:
    with Load(release.address()) as load:
        release.run("helm", "rollback", "chat", "1", "-n", "default")
        release.until("2 workers", lambda: len(workers(release)) == 2)
        release.until("1 gateway", lambda: len(gateways(release)) == 1)
        answered = load.answered
        release.until("answers go on", lambda: load.answered > answered + 8)
    assert load.failures == []


def test_uninstall_of_the_cluster_leaves_nothing_of_it(release: Release) -> None:
    release.run("helm", "uninstall", "chat", "-n", "default", "--wait", "--timeout", "60s")
    release.until("nothing is left", lambda: left_over(release, "default") == [])


def test_uninstall_of_the_operator_keeps_clusters_and_a_new_one_takes_them_over(release: Release) -> None:
    release.helm_cluster("install")
    release.wait_available()
    uids = {pod["metadata"]["uid"] for pod in workers(release)}
    with Load(release.address()) as load:
        release.run("helm", "uninstall", "fulcrum", "-n", OPERATOR_NAMESPACE, "--wait", "--timeout", "60s")
        release.until("nothing is left", lambda: left_over(release, OPERATOR_NAMESPACE) == [])
        release.helm_operator("install", "crds.keep=false")
        release.until("an operator leads", lambda: operator_clusters(release) == 1)
    assert load.failures == []
    assert {pod["metadata"]["uid"] for pod in workers(release)} == uids


def test_uninstall_with_the_crd_removes_clusters_also_when_no_operator_runs(release: Release) -> None:
    release.kubectl("scale", "deployment/fulcrum-operator", "-n", OPERATOR_NAMESPACE, "--replicas=0")
    release.until("no operator", lambda: release.read("pods", "-n", OPERATOR_NAMESPACE)["items"] == [])
    release.run("helm", "uninstall", "fulcrum", "-n", OPERATOR_NAMESPACE, "--wait", "--timeout", "60s")
    release.until("nothing of the operator", lambda: left_over(release, OPERATOR_NAMESPACE) == [])
    crds = release.kubectl("get", "crd,clusterrole,clusterrolebinding", "-o", "name")
    assert "fulcrum" not in crds
    # Helm deletes no object whose kind is gone, so that its own record is what is left (charts/fulcrum/README.md).
    release.kubectl("delete", "secret", "-n", "default", "-l", "owner=helm,name=chat")
    release.until("nothing of the cluster", lambda: left_over(release, "default") == [])


POOL = tuple(
    f"pools[0].{name}"
    for name in (
        "name=cpu",
        "accelerator=cpu",
        "workers.min=2",
        "resources.requests.cpu=50m",
        "resources.requests.memory=64Mi",
        "template.spec.containers[0].name=worker",
        f"template.spec.containers[0].command={{{sys.executable},{Path(__file__).with_name('loopback_worker.py')}}}",
    )
)
"""`--set` replaces a list as a whole."""


def workers(release: Release) -> list[Any]:
    return list(release.read("pods", "-l", "app.kubernetes.io/component=worker")["items"])


def gateways(release: Release) -> set[str]:
    """Names of the Pods, ready or not, ending or not."""
    found = release.read("pods", "-l", "app.kubernetes.io/component=gateway")["items"]
    return {pod["metadata"]["name"] for pod in found}


def operator_clusters(release: Release) -> int:
    """How many clusters the operator that leads has reconciled; 0 while there is none."""
    pods = [pod for pod in release.read("pods", "-n", OPERATOR_NAMESPACE)["items"] if pod["status"].get("podIP")]
    for pod in pods:
        try:
            with urllib.request.urlopen(
                f"http://{pod['status']['podIP']}:8081/metrics", timeout=deadline_seconds(5)
            ) as page:
                for line in page.read().decode().splitlines():
                    if line.startswith("fulcrum_operator_clusters "):
                        return int(float(line.split()[1]))
        except OSError:
            continue
    return 0
