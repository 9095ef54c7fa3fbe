"""What admission does to every Pod of a real cluster: its ServiceAccount's token, and how long it stays on a lost node.

Sources: https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/ (ServiceAccount,
DefaultTolerationSeconds)
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json, forbidden
from fulcrum_local.apiserver.store import Store

TOKEN_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a folder
_TOKEN_SECONDS: Final = 3607
"""An hour and seven seconds, as the real admission asks for."""
_TOLERATION_SECONDS: Final = 300
_LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


def admit_pod(store: Store, pod: Json) -> None:
    """Complete a new Pod in place. Errors: ApiError 403 when its ServiceAccount does not exist."""
    spec = pod["spec"]
    account = _account(store, pod)
    mount = spec.get("automountServiceAccountToken")
    if mount is None:
        mount = account.get("automountServiceAccountToken")
    if mount is not False:
        _mount_token(spec)
    if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [dict(entry) for entry in account["imagePullSecrets"]]
    _tolerate_lost_node(spec)


def _account(store: Store, pod: Json) -> Json:
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    name = spec.get("serviceAccountName") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    stored = store.get("serviceaccounts", namespace, name)
    if stored is None:
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden("", "pods", pod["metadata"]["name"], why)
    return stored.obj


def _mount_token(spec: Json) -> None:
    """A projected volume with token, authority and namespace, for each container that mounts nothing there itself."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    lacking = [
        container
        for container in containers
        if all(mount.get("mountPath") != TOKEN_FOLDER for mount in container.get("volumeMounts") or ())
    ]
    if not lacking:
        return
    name = "kube-api-access-" + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
    for container in lacking:
        mounts = container.setdefault("volumeMounts", [])
        mounts.append({"name": name, "readOnly": True, "mountPath": TOKEN_FOLDER})
    namespace: dict[str, Any] = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]
    spec.setdefault("volumes", []).append({"name": name, "projected": {"defaultMode": 0o644, "sources": sources}})


def _tolerate_lost_node(spec: Json) -> None:
    for key in _LOST_NODE_TAINTS:
        tolerations = spec.get("tolerations") or []
        if any(_covers(toleration, key) for toleration in tolerations):
            continue
        added = {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _TOLERATION_SECONDS,
        }
        spec["tolerations"] = [*tolerations, added]


def _covers(toleration: Json, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")
