"""What `kubectl apply -k manifests/` installs, and the samples."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.machine import deadline_seconds

from fulcrum.api import names
from fulcrum.api.crd import custom_resource_definition, root_schema
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.controller.installation import Installation

_ROOT = Path(__file__).parents[2]
_SAMPLES = sorted((_ROOT / "manifests" / "samples").glob("*.yaml")) + sorted((_ROOT / "examples").glob("*.yaml"))


@cache
def _rendered() -> dict[tuple[str, str], dict[str, Any]]:
    kubectl = Path(sys.executable).with_name("kubectl")
    if not kubectl.exists():
        pytest.skip("kubectl is not installed here")
    done = subprocess.run(
        [kubectl, "kustomize", str(_ROOT / "manifests")],
        capture_output=True,
        text=True,
        timeout=deadline_seconds(240),
        check=True,
    )
    documents = list(yaml.safe_load_all(done.stdout))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def _rules(kind: str, name: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = _rendered()[kind, name]["rules"]
    return rules


def test_installs_the_generated_crd() -> None:
    crd = _rendered()["CustomResourceDefinition", "inferenceclusters.fulcrum.dev"]
    assert crd["spec"] == custom_resource_definition()["spec"]


def test_namespace_and_crd_come_first() -> None:
    kinds = [kind for kind, _ in _rendered()]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]


def test_the_operator_may_do_only_what_is_listed() -> None:
    for rule in _rules("ClusterRole", names.OPERATOR_NAME):
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]
        # The clusters' tokens, whose names follow the clusters: get and create, never a list of what there is.
        assert "secrets" not in rule["resources"] or (rule["resources"], set(rule["verbs"])) == (
            ["secrets"], {"get", "create"},
        )  # fmt: skip
        # Model configurations and profiles: those that are named, never a list of what there is.
        assert "configmaps" not in rule["resources"] or (rule["resources"], rule["verbs"]) == (["configmaps"], ["get"])
        # A node that is gone has to be told from one that is slow: one at a time, never all of them.
        assert "nodes" not in rule["resources"] or (rule["resources"], rule["verbs"]) == (["nodes"], ["get"])


def test_the_operator_holds_what_it_hands_on_to_gateways() -> None:
    """An API server lets nobody make a Role that grants more than its maker holds."""
    held = {
        (group, resource, verb)
        for rule in _rules("ClusterRole", names.OPERATOR_NAME)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("", "pods", verb) for verb in ("list", "watch")} <= held


def test_the_binding_names_the_operators_account() -> None:
    (subject,) = _rendered()["ClusterRoleBinding", names.OPERATOR_NAME]["subjects"]
    assert (subject["name"], subject["namespace"]) == (names.OPERATOR_NAME, names.OPERATOR_NAMESPACE)


def test_the_operator_runs_restricted() -> None:
    deployment = _rendered()["Deployment", names.OPERATOR_NAME]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["metadata"]["namespace"] == names.OPERATOR_NAMESPACE
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod_labels(deployment).items()
    assert pod["serviceAccountName"] == names.OPERATOR_NAME
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["command"] == ["fulcrum", "operator"]
    assert container["ports"] == [{"name": "health", "containerPort": names.PORT_OPERATOR_HEALTH}]
    assert container["image"] == Installation().gateway_image


def pod_labels(deployment: dict[str, Any]) -> dict[str, str]:
    """Labels of the Pods that a Deployment makes."""
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


@pytest.mark.parametrize("path", _SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid(path: Path) -> None:
    schema = StructuralSchema(root_schema())
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["kind"] != "InferenceCluster":
            continue  # an API server is asked about these: tests/charts/test_manifests_applied.py
        assert schema.unknown_fields(document) == []
        assert [str(error) for error in schema.validate(schema.default(document))] == []
        load_inference_cluster(document)


def test_the_namespaced_install_has_no_cluster_wide_object_or_right() -> None:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", str(_ROOT / "manifests" / "overlays" / "namespaced")],
        capture_output=True,
        text=True,
        timeout=deadline_seconds(240),
        check=True,
    )
    documents = list(yaml.safe_load_all(done.stdout))
    namespaces = {(each["kind"], each["metadata"]["name"]): each["metadata"]["namespace"] for each in documents}
    serving = {("Role", "fulcrum-operator-clusters"), ("RoleBinding", "fulcrum-operator-clusters")}
    # A Pod of those who may write InferenceClusters must not be able to act as the operator.
    assert {name for name, namespace in namespaces.items() if namespace == "inference"} == serving
    assert {namespace for name, namespace in namespaces.items() if name not in serving} == {"fulcrum-system"}
    assert not {"ClusterRole", "ClusterRoleBinding", "Namespace"} & {each["kind"] for each in documents}
    rights = [rule for each in documents if each["kind"] == "Role" for rule in each["rules"]]
    assert not {"namespaces", "customresourcedefinitions", "nodes"} & {r for rule in rights for r in rule["resources"]}
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["args"] == ["--namespace=inference"]
    bound = [each["subjects"] for each in documents if each["kind"] == "RoleBinding"]
    assert all(subject["namespace"] == "fulcrum-system" for subjects in bound for subject in subjects)
