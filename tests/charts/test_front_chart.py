"""`charts/fulcrum-front`: the InferenceGateway that its values make, and what it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.charts.conftest import CHARTS
from tests.charts.test_cluster_chart import unknown_fields

from fulcrum.api.crd import INFERENCE_GATEWAY, root_schema
from fulcrum.api.objects import load_inference_gateway
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.controller.children import Owner
from fulcrum.controller.children.front import front_children
from fulcrum.controller.installation import Installation

CHART = CHARTS / "fulcrum-front"
LEAST = ("models[0].name=chat", "models[0].backends[0].cluster=a", "models[0].backends[0].weight=90")

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def flags(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART), *flags(LEAST))
    assert done.returncode == 0, done.stdout


def test_the_object_is_one_that_the_operator_reads_and_the_autoscaler_scales_its_fronts(render: Render) -> None:
    objects = render("fulcrum-front", *LEAST, "name=front", "autoscaling.enabled=true", "gateway.image=i")
    made = objects["InferenceGateway", "front"]
    schema = StructuralSchema(root_schema(INFERENCE_GATEWAY))
    assert [*schema.unknown_fields(made), *map(str, schema.validate(schema.default(made)))] == []
    gateway = load_inference_gateway({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert gateway.spec.models[0].backends[0].weight == 90
    assert made["spec"]["gateway"] == {"scaling": "External", "replicas": 2, "image": "i"}
    scaler = objects["HorizontalPodAutoscaler", "front-front"]
    assert unknown_fields(scaler, "V2HorizontalPodAutoscaler") == []
    owner = Owner(name="front", namespace="ml", uid="u", kind="InferenceGateway")
    made_children = front_children(owner, gateway.spec, Installation(), live_replicas=7)
    deployment = next(child for child in made_children if child["kind"] == "Deployment")
    target = scaler["spec"]["scaleTargetRef"]
    assert target == {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}
    assert deployment["spec"]["replicas"] == 7


def test_without_an_autoscaler_only_what_was_given_is_written(render: Render) -> None:
    objects = render("fulcrum-front", *LEAST, "gateway.replicas=3", "labels.team=a")
    assert objects.keys() == {("InferenceGateway", "release")}
    made = objects["InferenceGateway", "release"]
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["spec"] == {
        "models": [{"name": "chat", "backends": [{"cluster": "a", "weight": 90}]}],
        "gateway": {"replicas": 3},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "models: name at least one model"),
        (LEAST[:1], "missing property 'backends'"),
        ((*LEAST, "models[0].colour=blue"), "additional properties 'colour' not allowed"),
        ((*LEAST, "models[0].backends[0].weight=-1"), "/models/0/backends/0/weight"),
        ((*LEAST, "name=1front"), "/name"),
        ((*LEAST, "autoscaling.enabled=true", "gateway.scaling=Fixed"), "leave gateway.scaling out"),
        ((*LEAST, "autoscaling.enabled=true", "autoscaling.minReplicas=11"), "minReplicas must not be"),
    ],
)
def test_wrong_values_are_refused_with_a_message(helm: Helm, settings: tuple[str, ...], message: str) -> None:
    done = helm("template", "release", str(CHART), *flags(settings))
    assert done.returncode != 0
    assert message in done.stderr
