"""Over a matrix of values: every object that the charts render is one that Kubernetes knows, field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.test_published_schemas import problems

from fulcrum.api.crd import root_schema
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum_local.apiserver.model_types import model_of

Render = Callable[..., dict[tuple[str, str], dict[str, Any]]]

OPERATOR = {
    "crds": "crds.install=false",
    "rbac": "rbac.create=false",
    "namespaces": "watchNamespaces={team-a,team-b}",
    "account": "serviceAccount.annotations.a=b",
    "replicas": "operator.replicas=3,podDisruptionBudget.enabled=true",
    "network": "networkPolicy.enabled=true",
    "dashboard": "dashboard.enabled=true",
    "monitors": "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true",
    "rules": "metrics.rules.enabled=true,metrics.dashboards.enabled=true",
    "placement": "operator.nodeSelector.disk=ssd,operator.tolerations[0].key=gpu,operator.priorityClassName=a",
    "pod": "operator.podLabels.a=b,operator.podAnnotations.c=d,imagePullSecrets[0].name=registry",
}
CLUSTER = {
    "route": "httpRoute.enabled=true,httpRoute.parentRefs[0].name=public,httpRoute.hostnames[0]=chat.example.com",
    "ingress": "ingress.enabled=true,ingress.host=chat.example.com,ingress.tlsSecretName=tls,ingress.className=nginx",
    "scaler": "gatewayAutoscaling.enabled=true",
    "key": "test.apiKey.name=keys,test.apiKey.key=one",
    "untested": "test.enabled=false",
    "gateway": "gateway.service.type=LoadBalancer,gateway.auth.secretName=keys",
}
LEAST = ("model.name=m", "pools[0].name=p", "pools[0].accelerator=cpu", "pools[0].workers.max=2")


def matrix(toggles: dict[str, str]) -> list[Any]:
    """None of the toggles, all of them, each alone, and all but each."""
    every = tuple(toggles.values())
    cases = [pytest.param((), id="none"), pytest.param(every, id="all")]
    for name, toggle in toggles.items():
        cases.append(pytest.param((toggle,), id=name))
        cases.append(pytest.param(tuple(each for each in every if each != toggle), id=f"without {name}"))
    return cases


def schemas() -> dict[str, StructuralSchema]:
    """Schemas of the kinds that are not Kubernetes' own."""
    found = {"InferenceCluster": StructuralSchema(root_schema())}
    for crd in foreign_crds():
        (version,) = crd["spec"]["versions"]
        found[crd["spec"]["names"]["kind"]] = StructuralSchema(version["schema"]["openAPIV3Schema"])
    return found


def wrong_with(document: dict[str, Any]) -> list[str]:
    group, _, version = document["apiVersion"].rpartition("/")
    model = model_of(group, version, document["kind"])
    if model is not None:
        return problems(document, model, document["kind"])
    if document["kind"] in ("CustomResourceDefinition", "HorizontalPodAutoscaler"):
        return []  # compared with crds/, and with the official client's model (test_cluster_chart.py)
    schema = schemas()[document["kind"]]
    return [*schema.unknown_fields(document), *map(str, schema.validate(schema.default(document)))]


@pytest.mark.parametrize("settings", matrix(OPERATOR))
def test_the_operators_objects(render: Render, settings: tuple[str, ...]) -> None:
    objects = render("fulcrum", *settings)
    assert ("Deployment", "release-operator") in objects
    assert [each for document in objects.values() for each in wrong_with(document)] == []


@pytest.mark.parametrize("settings", matrix(CLUSTER))
def test_a_clusters_objects(render: Render, settings: tuple[str, ...]) -> None:
    objects = render("fulcrum-cluster", *LEAST, *settings)
    assert ("InferenceCluster", "release") in objects
    assert [each for document in objects.values() for each in wrong_with(document)] == []


def test_a_misspelt_field_would_be_found(render: Render) -> None:
    objects = render("fulcrum-cluster", *LEAST, CLUSTER["ingress"], CLUSTER["route"])
    for kind in ("Ingress", "HTTPRoute", "InferenceCluster"):
        document = objects[kind, "release"]
        assert wrong_with({**document, "spec": {**document["spec"], "colour": "blue"}})
