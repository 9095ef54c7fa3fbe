"""What a gateway may do: watch the Pods of its namespace, and read its own InferenceCluster."""

from __future__ import annotations

from fulcrum.api.names import GROUP, PLURAL, gateway_name
from fulcrum.controller.children.owner import GATEWAY, Manifest, Owner


def gateway_service_account(owner: Owner) -> Manifest:
    """Return the gateways' ServiceAccount."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": owner.metadata(gateway_name(owner.name), GATEWAY),
    }


def gateway_role(owner: Owner) -> Manifest:
    """Return the gateways' Role."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": owner.metadata(gateway_name(owner.name), GATEWAY),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {
                "apiGroups": [GROUP],
                "resources": [PLURAL],
                "resourceNames": [owner.name],
                "verbs": ["list", "watch"],
            },
        ],
    }


def gateway_role_binding(owner: Owner) -> Manifest:
    """Return the binding of the two."""
    name = gateway_name(owner.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": owner.metadata(name, GATEWAY),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
