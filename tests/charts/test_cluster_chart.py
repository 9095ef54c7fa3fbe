"""`charts/fulcrum-cluster`: the InferenceCluster that its values make, and what it refuses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import models

from fulcrum.api.objects import load_inference_cluster
from fulcrum.controller.children import Owner, children

CHART = Path(__file__).resolve().parents[2] / "charts/fulcrum-cluster"
CLUSTER = ("InferenceCluster", "release")
LEAST = (
    "model.name=meta-llama/Llama-3.1-8B-Instruct",
    "pools[0].name=h100",
    "pools[0].accelerator=H100-SXM-80GB",
    "pools[0].workers.min=2",
    "pools[0].workers.max=8",
)

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def test_lint_finds_nothing(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump({"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}]})
    )
    done = helm("lint", "--strict", str(CHART), "--values", str(values))
    assert done.returncode == 0, done.stdout


def test_the_cluster_is_one_that_the_operator_reads(render: Render) -> None:
    made = render("fulcrum-cluster", *LEAST, "slo.ttft=500ms", "balance.mode=Observe")[CLUSTER]
    made["metadata"]["uid"] = "u"
    cluster = load_inference_cluster(made)
    assert cluster.spec.model.name == "meta-llama/Llama-3.1-8B-Instruct"
    assert cluster.spec.pools[0].workers.max == 8
    assert cluster.spec.slo.ttft == "500ms"
    assert set(made["spec"]) == {"model", "pools", "slo", "balance"}


def test_adapters_are_those_of_the_values(render: Render) -> None:
    listed = ("adapters.list[0].name=sql", "adapters.list[0].source=/cache/adapters/sql")
    made = render("fulcrum-cluster", *LEAST, "adapters.max=4", *listed)[CLUSTER]
    cluster = load_inference_cluster({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert cluster.spec.adapters is not None
    assert [(each.name, each.source) for each in cluster.spec.adapters.list] == [("sql", "/cache/adapters/sql")]
    assert cluster.spec.adapters.max == 4


def test_routes_lead_to_the_gateway(render: Render) -> None:
    objects = render(
        "fulcrum-cluster",
        *LEAST,
        "name=chat",
        "httpRoute.enabled=true",
        "httpRoute.parentRefs[0].name=public",
        "ingress.enabled=true",
        "ingress.host=chat.example.com",
    )
    (rule,) = objects["HTTPRoute", "chat"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "chat-gateway", "port": 8080}]
    (path,) = objects["Ingress", "chat"]["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "chat-gateway", "port": {"number": 8080}}


def unknown_fields(value: Any, kind: str) -> list[str]:
    """Fields of an object that the model of that name in the official client does not have."""
    inside = re.fullmatch(r"list\[(\w+)\]", kind)
    if inside:
        return [name for each in value for name in unknown_fields(each, inside[1])]
    model = getattr(models, kind, None)
    if model is None:
        return []
    types = {model.attribute_map[field]: each for field, each in model.openapi_types.items()}
    found = [name for name in value if name not in types]
    return found + [each for name in value.keys() & types for each in unknown_fields(value[name], types[name])]


def test_an_autoscaler_of_gateways_scales_what_the_operator_leaves_alone(render: Render) -> None:
    objects = render("fulcrum-cluster", *LEAST, "name=chat", "gatewayAutoscaling.enabled=true", "gateway.image=i")
    scaler = objects["HorizontalPodAutoscaler", "chat-gateway"]
    assert unknown_fields(scaler, "V2HorizontalPodAutoscaler") == []
    made = objects["InferenceCluster", "chat"]
    cluster = load_inference_cluster({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert made["spec"]["gateway"] == {"scaling": "External", "replicas": 2, "image": "i"}
    owner = Owner(name="chat", namespace="ml", uid="u")
    deployment = next(
        child
        for child in children(owner, cluster.spec, token_fingerprint="f", live_gateways=7)
        if child["kind"] == "Deployment"
    )
    target = scaler["spec"]["scaleTargetRef"]
    assert target == {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}
    assert deployment["spec"]["replicas"] == 7


def test_without_an_autoscaler_the_cluster_says_how_many_gateways(render: Render) -> None:
    objects = render("fulcrum-cluster", *LEAST, "gateway.replicas=3")
    assert objects[CLUSTER]["spec"]["gateway"] == {"replicas": 3}
    assert not [kind for kind, _ in objects if kind == "HorizontalPodAutoscaler"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LEAST[1:], "model.name: name the model to serve"),
        (LEAST[:1], "pools: name at least one pool"),
        ((*LEAST, "slo.ttfb=1s"), "additional properties 'ttfb' not allowed"),
        ((*LEAST, "pools[0].workers.min=-1"), "/pools/0/workers/min"),
        ((*LEAST, "slo.attainment=1.5"), "/slo/attainment"),
        ((*LEAST, "adapters.max=0"), "/adapters/max"),
        ((*LEAST, "adapters.max=1", "adapters.maxRank=12"), "/adapters/maxRank"),
        ((*LEAST, "adapters.max=1", "adapters.list[0].name=sql"), "missing property 'source'"),
        ((*LEAST, "httpRoute.enabled=true"), "httpRoute.parentRefs: name the Gateway"),
        ((*LEAST, "ingress.enabled=true", "ingress.tlsSecretName=x"), "ingress.host: TLS needs the host"),
        ((*LEAST, "name=Chat"), "/name"),
        ((*LEAST, "gatewayAutoscaling.enabled=true", "gateway.scaling=Fixed"), "leave gateway.scaling out"),
        ((*LEAST, "gatewayAutoscaling.enabled=true", "gatewayAutoscaling.minReplicas=11"), "minReplicas must not be"),
    ],
)
def test_wrong_values_are_refused_with_a_message(helm: Helm, settings: tuple[str, ...], message: str) -> None:
    done = helm("template", "release", str(CHART), *(word for setting in settings for word in ("--set", setting)))
    assert done.returncode != 0
    assert message in done.stderr
