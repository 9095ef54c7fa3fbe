"""InferenceGateways on an API server: applied, explained, listed, refused with a field and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.server.cluster import Kubectl

CRDS = Path(__file__).parents[3] / "crds"
GOOD = """
apiVersion: fulcrum.dev/v1alpha1
kind: InferenceGateway
metadata: {name: front}
spec:
  models:
  - name: chat
    aliases: [gpt-4o]
    backends: [{cluster: a, weight: 90}, {cluster: b, weight: 10}]
    fallback: [{cluster: c, namespace: other}]
"""


@pytest.fixture(scope="module", autouse=True)
def crds(kubectl_of_cluster: Kubectl) -> None:
    kubectl_of_cluster("apply", "--server-side", "--force-conflicts", "-k", str(CRDS))
    kubectl_of_cluster("wait", "--for=condition=Established", "crd/inferencegateways.fulcrum.dev")


@pytest.mark.integration
def test_it_is_served(kubectl: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "front.yaml"
    file.write_text(GOOD)
    kubectl("apply", "-f", str(file))
    assert "MODELS" in kubectl("get", "ig").splitlines()[0]
    assert kubectl("get", "ig", "front", "-o", "jsonpath={.spec.gateway.replicas}") == "2"
    assert "429 or" in " ".join(kubectl("explain", "ig.spec.models.fallback").split())
    assert kubectl("diff", "-f", str(file)) == ""


@pytest.mark.integration
def test_a_bad_one_is_refused_with_what_to_do(kubectl: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "front.yaml"
    file.write_text(GOOD.replace("weight: 90", "weight: 0").replace("weight: 10", "weight: 0"))
    said = kubectl.fails("apply", "-f", str(file))
    assert "spec.models[0]" in said
    assert "set one weight above 0" in said
