"""Which Pods may open connections to workers and gateways. Networks that enforce no NetworkPolicy ignore them.

Policies add up: another one that selects the same Pods lets in more. What they may connect to is left open, because
models come from anywhere.
"""

from __future__ import annotations

from typing import Final

from fulcrum.api.names import (
    COMPONENT_FOLLOWER,
    COMPONENT_OPERATOR,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_NAME,
    PORT_AGENT,
    PORT_ENGINE,
    PORT_GATEWAY,
    PORT_GATEWAY_INSIDE,
    gateway_name,
    workers_policy_name,
)
from fulcrum.controller.children.owner import APP_NAME, GATEWAY, WORKER, Manifest, Owner
from fulcrum.controller.installation import Installation

_LABEL_NAMESPACE: Final = "kubernetes.io/metadata.name"
PROMETHEUS: Final[Manifest] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {LABEL_NAME: "prometheus"}},
}
"""Prometheus as its operator and its charts label it, in any namespace."""


def workers_policy(owner: Owner, installation: Installation, *, grouped: bool = False) -> Manifest:
    """Return the policy of the workers: gateways, the operator, Prometheus, and each other.

    `grouped`: some are on several nodes, and the policy is about their followers, too.
    """
    members = owner.selector(WORKER)
    selector: Manifest = {"matchLabels": members}
    if grouped:
        both = {"key": LABEL_COMPONENT, "operator": "In", "values": [COMPONENT_FOLLOWER, WORKER]}
        selector = {"matchLabels": {LABEL_CLUSTER: members[LABEL_CLUSTER]}, "matchExpressions": [both]}
    ingress = [
        # UCX listens on ports of its own choice, and so do the ranks of one engine.
        {"from": [{"podSelector": selector}]},
        {"from": [_pods(owner, GATEWAY)], "ports": _ports(PORT_ENGINE, PORT_AGENT)},
        {"from": [_operator(installation)], "ports": _ports(PORT_AGENT)},
        # Of the engine's other paths a caller without the token gets nothing.
        {"from": [PROMETHEUS], "ports": _ports(PORT_ENGINE, PORT_AGENT)},
    ]
    policy = _policy(owner, workers_policy_name(owner.name), WORKER, ingress)
    policy["spec"]["podSelector"] = selector
    return policy


def gateway_policy(owner: Owner, installation: Installation) -> Manifest:
    """Return the policy of the gateways: clients from anywhere; what is for the cluster only from within."""
    ingress = [
        {"ports": _ports(PORT_GATEWAY)},
        {
            "from": [_pods(owner, GATEWAY), _operator(installation), PROMETHEUS],
            "ports": _ports(PORT_GATEWAY_INSIDE),
        },
    ]
    return _policy(owner, gateway_name(owner.name), GATEWAY, ingress)


def _policy(owner: Owner, name: str, component: str, ingress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(name, component),
        "spec": {
            "podSelector": {"matchLabels": owner.selector(component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _pods(owner: Owner, component: str) -> Manifest:
    return {"podSelector": {"matchLabels": owner.selector(component)}}


def _operator(installation: Installation) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {_LABEL_NAMESPACE: installation.namespace}},
        "podSelector": {"matchLabels": {LABEL_NAME: APP_NAME, LABEL_COMPONENT: COMPONENT_OPERATOR}},
    }


def _ports(*numbers: int) -> list[Manifest]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]
