"""What an InferenceGateway's status says, and which clusters its fronts may use."""

from __future__ import annotations

from typing import Any

import msgspec

from fulcrum.api.front_types import InferenceGatewayStatus
from fulcrum.api.objects import load_inference_cluster, load_inference_gateway
from fulcrum.api.types import InferenceCluster
from fulcrum.front.report import Seen, report
from fulcrum.front.routes import routes_of

NOW = "2026-01-01T00:00:00Z"


def cluster(
    name: str, namespace: str = "team", *, ready: bool = True, adapters: dict[str, Any] | None = None, **gateway: Any
) -> InferenceCluster:
    condition = {
        "type": "Available", "status": "True" if ready else "False", "reason": "Ready", "message": "",
        "observedGeneration": 1, "lastTransitionTime": NOW,
    }  # fmt: skip
    return load_inference_cluster(
        {
            "apiVersion": "fulcrum.dev/v1alpha1",
            "kind": "InferenceCluster",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": {"name": "org/m"},
                "slo": {"ttft": "1s", "tpot": "50ms"},
                "pools": [{"name": "p", "accelerator": "cpu", "workers": {"min": 1, "max": 1}, "roles": ["mixed"]}],
                "gateway": gateway,
                **({} if adapters is None else {"adapters": adapters}),
            },
            "status": {"endpoint": f"http://10.0.0.{len(name)}:8080", "conditions": [condition]},
        }
    )


def seen(*clusters: InferenceCluster, models: list[dict[str, Any]], ready: int = 1, **before: Any) -> Seen:
    gateway = load_inference_gateway(
        {
            "apiVersion": "fulcrum.dev/v1alpha1",
            "kind": "InferenceGateway",
            "metadata": {"name": "front", "namespace": "team", "generation": 3},
            "spec": {"models": models},
            "status": before,
        }
    )
    known = {f"{each.metadata.namespace}/{each.metadata.name}": each for each in clusters}
    return Seen(gateway=gateway, clusters=known, ready_fronts=ready)


def chat(*backends: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "chat", "backends": list(backends), **fields}


def told(status: InferenceGatewayStatus) -> dict[str, tuple[str, str]]:
    return {each.type.value: (each.status.value, each.reason.value) for each in status.conditions}


def test_all_is_well() -> None:
    status = report(seen(cluster("a"), models=[chat({"cluster": "a"})]), NOW)
    assert told(status) == {"Available": ("True", "Ready"), "Degraded": ("False", "Healthy")}
    assert (status.ready, status.observed_generation) == ("1/1", 3)
    assert [each.name for each in status.clusters] == ["team/a"]


def test_a_cluster_of_another_namespace_needs_its_grant_and_never_gets_keys() -> None:
    models = [chat({"cluster": "b", "namespace": "other"})]
    refused = report(seen(cluster("b", "other"), models=models), NOW)
    assert told(refused) == {"Available": ("False", "ClusterMissing"), "Degraded": ("True", "NotGranted")}
    assert refused.clusters == ()
    assert "add team to its spec.gateway.allowedNamespaces" in refused.conditions[1].message
    absent = report(seen(models=models), NOW)
    assert absent.conditions == refused.conditions  # what another namespace has is not told
    (granted,) = report(seen(cluster("b", "other", allowedNamespaces=["team"]), models=models), NOW).clusters
    assert not granted.takes_keys


def test_a_missing_cluster_and_one_that_is_not_ready_say_what_to_do() -> None:
    models = [chat({"cluster": "a"}, {"cluster": "c"})]
    status = report(seen(cluster("a", ready=False), models=models), NOW)
    assert told(status) == {"Available": ("True", "Ready"), "Degraded": ("True", "ClusterNotReady")}
    assert "kubectl describe ic a -n team" in status.conditions[1].message
    assert "InferenceCluster c does not exist" in status.conditions[1].message


def test_keys_that_would_not_reach_a_cluster_are_told() -> None:
    other = cluster("b", "other", allowedNamespaces=["team"], auth={"secretName": "theirs"})
    models = [chat({"cluster": "b", "namespace": "other"}, auth={"secretName": "ours"})]
    assert told(report(seen(other, models=models), NOW))["Degraded"] == ("True", "KeysNotPassed")


def test_a_cluster_without_the_adapter_of_a_model_is_told() -> None:
    models = [chat({"cluster": "a"}, adapter="sql", fallback=[{"cluster": "b"}])]
    lora = {"max": 1, "maxRank": 8, "list": [{"name": "sql", "source": "acme/sql"}]}
    status = report(seen(cluster("a", adapters=lora), cluster("b"), models=models), NOW)
    assert told(status)["Degraded"] == ("True", "AdapterMissing")
    assert "InferenceCluster team/b does not have: add it to its spec.adapters.list" in status.conditions[1].message
    assert "team/a" not in status.conditions[1].message
    both = report(seen(cluster("a", adapters=lora), cluster("b", adapters=lora), models=models), NOW)
    assert told(both)["Degraded"] == ("False", "Healthy")
    ungranted = [chat({"cluster": "c", "namespace": "other"}, adapter="sql")]
    hidden = report(seen(cluster("c", "other"), models=ungranted), NOW)
    assert "AdapterMissing" not in str(hidden)
    assert told(hidden)["Degraded"] == ("True", "NotGranted")


def test_without_a_front_nothing_is_available() -> None:
    status = report(seen(cluster("a"), models=[chat({"cluster": "a"})], ready=0), NOW)
    assert told(status)["Available"] == ("False", "GatewayNotReady")


def test_the_same_again_is_the_same_status() -> None:
    first = report(seen(cluster("a"), models=[chat({"cluster": "a"})]), NOW)
    again = seen(cluster("a"), models=[chat({"cluster": "a"})], **msgspec.to_builtins(first))
    assert report(again, "2026-02-02T00:00:00Z") == first


def test_keys_are_where_the_fronts_were_told_that_they_are() -> None:
    gateway = seen(models=[chat({"cluster": "a"}, auth={"secretName": "keys"})]).gateway
    assert [model.api_keys_directory for model in routes_of(gateway).models] == ["/etc/fulcrum/api-keys/keys"]
    elsewhere = routes_of(gateway, {"keys": "/run/volumes/0", "other": "/run/volumes/1"})
    assert [model.api_keys_directory for model in elsewhere.models] == ["/run/volumes/0"]


def test_fronts_use_only_clusters_of_the_status() -> None:
    models = [chat({"cluster": "a", "weight": 90}, {"cluster": "b", "weight": 10}, fallback=[{"cluster": "c"}])]
    status = report(seen(cluster("a"), cluster("c"), models=models), NOW)
    routes = routes_of(msgspec.structs.replace(seen(models=models).gateway, status=status))
    (route,) = routes.models
    assert [(each.cluster, each.weight) for each in route.backends] == [("team/a", 90)]
    assert route.fallback == ("team/c",)
    assert [(each.host, each.port, each.served_name) for each in routes.clusters] == [
        ("10.0.0.1", 8080, "a"), ("10.0.0.1", 8080, "c"),
    ]  # fmt: skip
