"""InferenceCluster objects read and written as typed values."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster, to_dict
from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    AdmissionPolicy,
    BalanceMode,
    Condition,
    ConditionStatus,
    ConditionType,
    Decision,
    InferenceClusterStatus,
    KvCacheDtype,
    LatencyQuantiles,
    RoleCounts,
)


def _document(**spec: Any) -> dict[str, Any]:
    minimal: dict[str, Any] = {
        "model": {"name": "m"},
        "pools": [{"name": "cpu", "accelerator": "cpu", "workers": {"max": 2}}],
    }
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": "chat", "namespace": "prod", "uid": "u", "generation": 3, "creationTimestamp": None},
        "spec": minimal | spec,
    }


def test_defaults() -> None:
    cluster = load_inference_cluster(_document())
    assert cluster.metadata.generation == 3
    assert cluster.spec.balance.mode is BalanceMode.AUTO
    assert cluster.spec.balance.ratio is None
    assert cluster.spec.admission.policy is AdmissionPolicy.PREDICTIVE
    assert cluster.spec.engine.kv_cache.dtype is KvCacheDtype.AUTO
    assert cluster.spec.pools[0].roles == (Role.PREFILL, Role.DECODE, Role.MIXED)
    assert cluster.status == InferenceClusterStatus()


def test_namespace_defaults_as_kubectl_has_it() -> None:
    document = _document()
    del document["metadata"]["namespace"]
    assert load_inference_cluster(document).metadata.namespace == "default"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"slo": {"ttft": 5}}, ("spec.slo.ttft: 5", "Expected `str`, got `int`", "kubectl explain ic.spec.slo.ttft")),
        ({"pools": [{"name": "x"}]}, ("spec.pools[0]", "accelerator", "kubectl explain ic.spec.pools`")),
        ({"model": {}}, ("spec.model", "missing required field `name`")),
        ({"balance": {"mode": "auto"}}, ("spec.balance.mode: 'auto'",)),
        ({"slo": {"ttft": "1d"}}, ("spec.slo.ttft: '1d'",)),
    ],
)
def test_an_error_names_field_value_and_where_to_look(spec: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        load_inference_cluster(_document(**spec))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("kind", "Pod"), ("apiVersion", "v1"), ("kind", None)])
def test_another_kind_is_refused(field: str, value: str | None) -> None:
    with pytest.raises(InvalidValueError, match=f"^{field}: "):
        load_inference_cluster(_document() | {field: value})


def test_nulls_in_a_pod_template_are_kept() -> None:
    pool = {"name": "a", "accelerator": "cpu", "workers": {"max": 2}, "admits": None}
    template = {"spec": {"nodeSelector": None, "volumes": [{"name": "x", "emptyDir": {}}]}}
    cluster = load_inference_cluster(_document(pools=[pool | {"template": template}]))
    assert cluster.spec.pools[0].template == template
    assert to_dict(cluster)["spec"]["pools"][0]["template"] == template
    assert "admits" not in to_dict(cluster)["spec"]["pools"][0]


def test_status_is_written_without_what_is_not_known() -> None:
    status = InferenceClusterStatus(
        observed_generation=3,
        conditions=(
            Condition(
                type=ConditionType.AVAILABLE,
                status=ConditionStatus.TRUE,
                reason=Reason.READY,
                message="",
                observed_generation=3,
                last_transition_time="2026-01-01T00:00:00Z",
            ),
        ),
        roles={Role.PREFILL: RoleCounts(desired=1, ready=1, draining=0)},
        ttft=LatencyQuantiles(p90="412ms"),
        last_decision=Decision(action="flip", reason=Reason.ROLE_FLIPPED, from_="1P:3D", to="2P:2D", time="t"),
    )
    written = to_dict(status)
    assert set(written) == {"observedGeneration", "conditions", "roles", "ttft", "lastDecision"}
    assert written["roles"] == {"prefill": {"desired": 1, "ready": 1, "draining": 0}}
    assert written["lastDecision"]["from"] == "1P:3D"
    assert load_inference_cluster(_document() | {"status": written}).status == status


def test_a_status_of_another_version_does_not_stop_the_operator() -> None:
    status = {"conditions": [{"type": "Available", "reason": "FromTheFuture"}]}
    assert load_inference_cluster(_document() | {"status": status}).status == InferenceClusterStatus()
