"""InferenceGateways: what is refused names the field and what to write; what is read is complete."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.crd import INFERENCE_GATEWAY, root_schema
from fulcrum.api.errors import InvalidValueError
from fulcrum.api.objects import load_inference_gateway
from fulcrum.api.schema.structural import StructuralSchema

SCHEMA = StructuralSchema(root_schema(INFERENCE_GATEWAY))


def front(*models: dict[str, Any], name: str = "front", **gateway: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"models": list(models), "gateway": gateway},
    }


def model(name: str = "chat", *clusters: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "backends": [{"cluster": each} for each in clusters or ("a",)], **fields}


def problems(document: dict[str, Any]) -> str:
    return "\n".join(map(str, SCHEMA.validate(SCHEMA.default(document))))


def test_a_whole_one_is_accepted_and_read() -> None:
    canary = [{"cluster": "a", "weight": 90}, {"cluster": "b", "weight": 10, "namespace": "other"}]
    document = front(
        {
            "name": "chat",
            "aliases": ["gpt-4o", "chat-latest"],
            "adapter": "acme/sql",
            "backends": canary,
            "fallback": [{"cluster": "c"}],
            "auth": {"secretName": "keys"},
            "limits": {"requestsPerMinute": 600, "tokensPerMinute": 100000},
        },
        model("org/small"),
        replicas=3,
        service={"type": "LoadBalancer"},
    )
    assert problems(document) == ""
    read = load_inference_gateway(document)
    assert [backend.weight for backend in read.spec.models[0].backends] == [90, 10]
    assert read.spec.models[0].backends[1].namespace == "other"
    assert read.spec.models[1].backends[0].weight == 1
    assert read.spec.gateway.replicas == 3


@pytest.mark.parametrize(
    ("document", "field", "fix"),
    [
        (front(), "spec.models", "at least 1"),
        (front(model(), model()), "spec.models[1]", "Duplicate value"),
        (front({"name": "chat", "backends": []}), "spec.models[0].backends", "at least 1"),
        (front({"name": "two words", "backends": [{"cluster": "a"}]}), "spec.models[0].name", "should match"),
        (front(model("chat", "a", "a")), "backends", "list it once, with the sum of the weights"),
        (front(model(fallback=[{"cluster": "b"}, {"cluster": "b"}])), "fallback", "remove it"),
        (front({"name": "m", "backends": [{"cluster": "a", "weight": 0}]}), "backends", "set one weight above 0"),
        (front({"name": "m", "backends": [{"cluster": "a", "weight": -1}]}), "weight", "greater than or equal to 0"),
        (front(model(aliases=["chat"])), "aliases", "remove it"),
        (front(model("one", aliases=["two"]), model("two")), "models", "each name must lead to one model"),
        (front(model("one", aliases=["x"]), model("two", aliases=["x"])), "models", "the same alias"),
        (front(model(adapter="two words")), "spec.models[0].adapter", "should match"),
        (front(model(limits={"requestsPerMinute": 0})), "limits.requestsPerMinute", "greater than or equal to 1"),
        (front(model(), name="a" * 41), "metadata.name", "at most 40"),
        (front(model(), service={"nodePort": 30000}), "nodePort", "use type NodePort"),
        (front(model(), requestTimeout="25h"), "requestTimeout", "not be longer than 24h"),
    ],
)
def test_what_is_refused_names_the_field_and_what_to_do(document: dict[str, Any], field: str, fix: str) -> None:
    said = problems(document)
    assert field in said
    assert fix in said


def test_the_same_name_in_two_namespaces_is_two_clusters() -> None:
    backends = [{"cluster": "a"}, {"cluster": "a", "namespace": "other"}]
    assert problems(front({"name": "chat", "backends": backends})) == ""


def test_one_that_does_not_fit_names_the_field() -> None:
    with pytest.raises(InvalidValueError, match=r"spec.models\[0\].backends.*kubectl explain ig.spec.models.backends"):
        load_inference_gateway(front({"name": "chat", "backends": "a"}))
