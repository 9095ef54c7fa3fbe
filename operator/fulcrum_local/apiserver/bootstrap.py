"""What a fresh cluster has: namespaces, and the ClusterRoles and bindings that users expect."""

from __future__ import annotations

import uuid
from typing import Any, Final

from fulcrum_local.apiserver.authentication import AUTHENTICATED, KUBELET_CLIENT_USER, MASTERS
from fulcrum_local.apiserver.authorization import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.lifecycles import namespace_children
from fulcrum_local.apiserver.store import Change, Store
from fulcrum_local.apiserver.times import now_text

_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_RBAC: Final = "rbac.authorization.k8s.io"
_EDITED: Final = (
    ("", ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"]),
    ("apps", ["deployments", "deployments/scale", "replicasets", "replicasets/scale"]),
    ("policy", ["poddisruptionbudgets"]),
    ("coordination.k8s.io", ["leases"]),
)
_WRITE: Final = ["create", "delete", "deletecollection", "patch", "update"]
_READ: Final = ["get", "list", "watch"]
_VIEWED: Final = (
    ("", ["configmaps", "endpoints", "events", "namespaces", "persistentvolumeclaims", "pods", "pods/log",
          "pods/status", "serviceaccounts", "services", "services/status"]),
    ("apps", ["deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale",
              "replicasets/status"]),
    ("policy", ["poddisruptionbudgets", "poddisruptionbudgets/status"]),
    ("discovery.k8s.io", ["endpointslices"]),
)  # fmt: skip
_PUBLIC_PATHS: Final = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY_PATHS: Final = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_PUBLIC_PATHS]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _paths(paths: list[str], verbs: list[str]) -> Json:
    return {"nonResourceURLs": paths, "verbs": verbs}


def _aggregate(name: str) -> Json:
    return {"clusterRoleSelectors": [{"matchLabels": {f"{_RBAC}/aggregate-to-{name}": "true"}}]}


def _cluster_roles() -> list[tuple[str, dict[str, str], Json]]:
    """Name, labels, and `rules` or `aggregationRule`."""

    def aggregate_to(name: str) -> dict[str, str]:
        return {f"{_RBAC}/aggregate-to-{name}": "true"}

    review = [_rule("authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"])]
    review.append(_rule("authentication.k8s.io", ["selfsubjectreviews"], ["create"]))
    view: list[Json] = [_rule(group, resources, _READ) for group, resources in _VIEWED]
    edit = [_rule(group, resources, [*_WRITE, *_READ]) for group, resources in _EDITED]
    edit.append(_rule("", ["pods/eviction", "serviceaccounts/token"], ["create"]))
    admin = [_rule(_RBAC, ["roles", "rolebindings"], [*_WRITE, *_READ])]
    delegated = [
        _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
        _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    ]
    kubelet = [
        _rule("", ["nodes"], _READ),
        _rule("", ["nodes"], ["proxy"]),
        _rule("", [f"nodes/{part}" for part in ("healthz", "log", "metrics", "proxy", "stats")], ["*"]),
    ]
    everything: list[Json] = [_rule("*", ["*"], ["*"]), _paths(["*"], ["*"])]
    return [
        ("cluster-admin", {}, {"rules": everything}),
        ("admin", {}, {"aggregationRule": _aggregate("admin"), "rules": []}),
        ("edit", aggregate_to("admin"), {"aggregationRule": _aggregate("edit"), "rules": []}),
        ("view", aggregate_to("edit"), {"aggregationRule": _aggregate("view"), "rules": []}),
        ("system:aggregate-to-admin", aggregate_to("admin"), {"rules": admin}),
        ("system:aggregate-to-edit", aggregate_to("edit") | aggregate_to("admin"), {"rules": edit}),
        (
            "system:aggregate-to-view",
            aggregate_to("view") | aggregate_to("edit") | aggregate_to("admin"),
            {"rules": view},
        ),
        ("system:basic-user", {}, {"rules": review}),
        ("system:discovery", {}, {"rules": [_paths(_DISCOVERY_PATHS, ["get"])]}),
        ("system:public-info-viewer", {}, {"rules": [_paths(_PUBLIC_PATHS, ["get"])]}),
        ("system:auth-delegator", {}, {"rules": delegated}),
        ("system:kubelet-api-admin", {}, {"rules": kubelet}),
    ]


_BINDINGS: Final = (
    ("cluster-admin", "Group", (MASTERS,)),
    ("system:basic-user", "Group", (AUTHENTICATED,)),
    ("system:discovery", "Group", (AUTHENTICATED,)),
    ("system:public-info-viewer", "Group", (AUTHENTICATED, "system:unauthenticated")),
    ("system:kubelet-api-admin", "User", (KUBELET_CLIENT_USER.name,)),
)
"""Each a ClusterRole and its binding, with the kind and the names of its subjects."""


def new_uid() -> str:
    """A random UID."""
    return str(uuid.uuid4())


def bootstrap(store: Store, authority: bytes) -> None:
    """Create what is missing, and from now on what every new namespace needs."""

    def follow(change: Change) -> None:
        if change.old is None:
            namespace_children(store, change.key[1], authority, now_text(), new_uid)

    store.listen("namespaces", follow)
    for name in _NAMESPACES:
        if store.get("namespaces", "", name) is None:
            labels = {"kubernetes.io/metadata.name": name}
            body = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            store.put("namespaces", _object("v1", "Namespace", name, labels, body))
    for name, labels, body in _cluster_roles():
        if store.get(CLUSTER_ROLES, "", name) is None:
            store.put(CLUSTER_ROLES, _object(f"{_RBAC}/v1", "ClusterRole", name, _bootstrap_labels(labels), body))
    for name, kind, subject_names in _BINDINGS:
        if store.get(CLUSTER_ROLE_BINDINGS, "", name) is None:
            subjects = [{"kind": kind, "apiGroup": _RBAC, "name": subject} for subject in subject_names]
            reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
            body = {"roleRef": reference, "subjects": subjects}
            binding = _object(f"{_RBAC}/v1", "ClusterRoleBinding", name, _bootstrap_labels({}), body)
            store.put(CLUSTER_ROLE_BINDINGS, binding)


def _bootstrap_labels(labels: dict[str, str]) -> dict[str, str]:
    return {"kubernetes.io/bootstrapping": "rbac-defaults", **labels}


def _object(api_version: str, kind: str, name: str, labels: dict[str, str], body: dict[str, Any]) -> Json:
    metadata: Json = {"name": name, "uid": new_uid(), "creationTimestamp": now_text(), "labels": labels}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
