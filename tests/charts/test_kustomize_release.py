"""The life of an installation by `kubectl apply -k`: base and overlays, from the operator's Pod to nothing left."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.foreign_kinds import foreign_crds
from tests.charts.release import Release, left_over, local_release
from tests.charts.test_release import CLUSTER
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is applied, where the operator comes to run, and where a cluster is made."""

    folders: tuple[str, ...]
    namespace: str = "fulcrum-system"
    clusters: str = "default"
    made_by_hand: tuple[str, ...] = ()
    """Namespaces that an administrator makes before."""


INSTALLATIONS = {
    "base": Installation(folders=(".",)),
    "namespaced": Installation(
        folders=("../crds", "overlays/namespaced"), clusters="inference", made_by_hand=("inference", "fulcrum-system")
    ),
    "monitoring": Installation(folders=("overlays/monitoring",)),
}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("kustomized")
    with local_release(folder, CLUSTER) as release:
        crds = folder / "foreign.yaml"
        crds.write_text(yaml.safe_dump_all(foreign_crds()))
        release.kubectl("apply", "-f", str(crds))
        yield release


def asked(address: str) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    request = urllib.request.Request(
        f"http://{address}:8080/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=deadline_seconds(60)) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_from_the_operators_pod_to_nothing_left(kubernetes: Release, name: str, tmp_path: Path) -> None:
    it = INSTALLATIONS[name]
    for namespace in it.made_by_hand:
        kubernetes.kubectl("create", "namespace", namespace)
    for folder in it.folders:
        kubernetes.kubectl("apply", "--server-side", "-k", str(MANIFESTS / folder))
    kubernetes.kubectl(
        "rollout",
        "status",
        "deployment/fulcrum-operator",
        "-n",
        it.namespace,
        f"--timeout={deadline_seconds(120):.0f}s",
    )
    (pod,) = kubernetes.read("pods", "-n", it.namespace, "-l", "app.kubernetes.io/component=operator")["items"]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"

    cluster = tmp_path / "chat.yaml"
    cluster.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "fulcrum.dev/v1alpha1",
                "kind": "InferenceCluster",
                "metadata": {"name": "chat"},
                "spec": {part: value for part, value in CLUSTER.items() if part != "test"},
            }
        )
    )
    kubernetes.kubectl("apply", "-n", it.clusters, "-f", str(cluster))
    kubernetes.kubectl(
        "wait", "ic/chat", "-n", it.clusters, "--for=condition=Available", f"--timeout={deadline_seconds(120):.0f}s"
    )
    assert asked(kubernetes.read("service", "chat-gateway", "-n", it.clusters)["spec"]["clusterIP"])

    kubernetes.kubectl("delete", "ic", "chat", "-n", it.clusters, f"--timeout={deadline_seconds(60):.0f}s")
    gone = ("pods,deployments,services,secrets", "-n", it.clusters, "-l", "fulcrum.dev/cluster=chat")
    kubernetes.until("nothing of the cluster", lambda: kubernetes.read(*gone)["items"] == [])
    for folder in reversed(it.folders):
        kubernetes.kubectl(
            "delete", "-k", str(MANIFESTS / folder), f"--timeout={deadline_seconds(60):.0f}s", "--ignore-not-found"
        )
    kubernetes.until("nothing of the operator", lambda: left_over(kubernetes, it.namespace) == [])
    for namespace in it.made_by_hand:
        kubernetes.kubectl("delete", "namespace", namespace, f"--timeout={deadline_seconds(60):.0f}s")
    kinds = kubernetes.kubectl("get", "crd,clusterrole,clusterrolebinding", "-o", "name")
    assert "fulcrum" not in kinds
