"""Everything that is generated, against the definitions that Kubernetes publishes: unknown fields and wrong types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children import Manifest, Owner, children, worker_pod
from fulcrum_local.apiserver.model_types import FieldType, Model, fields_of, model_of

OWNER = Owner(name="chat", namespace="ml", uid="u-1")
H100 = {"name": "h100", "accelerator": "H100-SXM-80GB", "workers": {"max": 4}}
POOLS: dict[str, dict[str, Any]] = {
    "cpu": {"accelerator": "cpu"},
    "gpu": {"parallelism": {"tensor": 8}},
    "mixed": {"roles": ["mixed"], "parallelism": {"pipeline": 2}},
    "dra": {"gpu": {"resourceClaimTemplate": "one"}},
    "everything": {
        "gpu": {"resource": "amd.com/gpu"},
        "rdma": {"count": 2, "devices": ["mlx5_0:1"]},
        "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}},
        "sharedMemory": "1Gi",
        "priorityClassName": "prod",
        "topology": {"keepWithin": "rack"},
        "engine": {"image": "i", "args": ["--seed=1"], "attentionBackend": "TRITON_ATTN"},
    },
}
_PYTHON = {"string": str, "integer": int, "boolean": bool, "number": (int, float), "time": str, "quantity": (str, int)}


def problems(value: Any, model: Model, path: str) -> list[str]:
    """What a strict decoder would say of an object."""
    known = fields_of(model)
    found = [f"{path}.{name}: unknown field" for name in value if name not in known]
    found += [f"{path}.{name}: required" for name, field in known.items() if field.required and name not in value]
    for name in value.keys() & known.keys():
        found += _of_field(value[name], known[name].type, f"{path}.{name}")
    return found


def _of_field(value: Any, kind: FieldType, path: str) -> list[str]:
    if kind.model is not None:
        return problems(value, kind.model, path) if isinstance(value, dict) else [f"{path}: not an object"]
    if kind.item is not None:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        assert isinstance(value, dict if kind.shape == "map" else list), path
        return [problem for key, item in entries for problem in _of_field(item, kind.item, f"{path}[{key}]")]
    wanted = _PYTHON.get(kind.shape, object)
    wrong = not isinstance(value, wanted) or (kind.shape == "integer" and isinstance(value, bool))  # type: ignore[arg-type]
    return [f"{path}: {value!r} is no {kind.shape}"] if wrong else []


def of(manifest: Manifest) -> list[str]:
    group, _, version = manifest["apiVersion"].rpartition("/")
    model = model_of(group, version, manifest["kind"])
    assert model is not None, manifest["kind"]
    return problems(manifest, model, manifest["kind"])


def spec_of(pool: dict[str, Any]) -> InferenceClusterSpec:
    model = {"name": "m", "cache": {"persistentVolumeClaim": "models"}, "credentials": {"secretName": "hf"}}
    gateway = {"auth": {"secretName": "keys", "prefixCache": "PerKey"}}
    return msgspec.convert({"model": model, "pools": [{**H100, **pool}], "gateway": gateway}, InferenceClusterSpec)


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_workers_are_as_published(pool: dict[str, Any]) -> None:
    spec = spec_of(pool)
    assert of(worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i")) == []


def test_children_are_as_published() -> None:
    made = children(OWNER, spec_of({}), token_fingerprint="f1")
    assert {child["kind"] for child in made} >= {"NetworkPolicy", "Deployment", "Service", "PodDisruptionBudget"}
    assert [problem for child in made for problem in of(child)] == []


def test_the_check_finds_what_is_wrong() -> None:
    spec = spec_of({})
    pod = worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i")
    pod["spec"]["fsGroup"] = 1
    pod["spec"]["containers"][0]["securityContext"]["runAsNonRoot"] = "yes"
    del pod["spec"]["containers"][0]["name"]
    assert sorted(of(pod)) == [
        "Pod.spec.containers[0].name: required",
        "Pod.spec.containers[0].securityContext.runAsNonRoot: 'yes' is no boolean",
        "Pod.spec.fsGroup: unknown field",
    ]
