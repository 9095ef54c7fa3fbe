"""Which Pods may open connections to workers and gateways. Networks that enforce no NetworkPolicy ignore them.

Policies add up: another one that selects the same Pods lets in more. What they may connect to is left open, because
models come from anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from fulcrum.api.names import (
    COMPONENT_BATCH,
    COMPONENT_FOLLOWER,
    COMPONENT_FRONT,
    COMPONENT_OPERATOR,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_NAME,
    LABEL_POOL,
    PORT_BATCH,
    PORT_GATEWAY,
    PORT_GATEWAY_INSIDE,
    gateway_name,
    workers_policy_name,
)
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children.owner import APP_NAME, GATEWAY, WORKER, Manifest, Owner
from fulcrum.controller.installation import Installation
from fulcrum.decide import ObservedWorker

_LABEL_NAMESPACE: Final = "kubernetes.io/metadata.name"
PROMETHEUS: Final[Manifest] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {LABEL_NAME: "prometheus"}},
}
"""Prometheus as its operator and its charts label it, in any namespace."""


_STANDING: Final = 16
"""Most kinds of ports beside those of the spec that a policy lets in, the most common first: each rollout that gives a
pool other ports leaves one until it ends."""


def workers_policy(
    owner: Owner, spec: InferenceClusterSpec, installation: Installation, workers: Iterable[ObservedWorker] = ()
) -> Manifest:
    """Return the policy of the workers: gateways, the operator, Prometheus, and each other.

    `workers` are those that stand. While they are replaced they listen on the ports of the revision before.

    Pools on their nodes' network are not part of it. It does not hold for them, and their workers of the revision
    before exchange KV with ones that come from a node's address.
    """
    standing = [worker for worker in workers if not worker.deleting]
    members = owner.selector(WORKER)
    selector: Manifest = {"matchLabels": members}
    if any(pool.nodes > 1 for pool in spec.pools):
        both = {"key": LABEL_COMPONENT, "operator": "In", "values": [COMPONENT_FOLLOWER, WORKER]}
        selector = {"matchLabels": {LABEL_CLUSTER: members[LABEL_CLUSTER]}, "matchExpressions": [both]}
    engines, agents = _listening(spec, standing)
    listening = sorted(engines | agents)
    ingress = [
        # UCX listens on ports of its own choice, and so do the ranks of one engine.
        {"from": [{"podSelector": selector}]},
        {"from": [_pods(owner, GATEWAY)], "ports": _ports(*listening)},
        {"from": [_operator(installation)], "ports": _ports(*sorted(agents))},
        # Of the engine's other paths a caller without the token gets nothing.
        {"from": [PROMETHEUS], "ports": _ports(*listening)},
    ]
    policy = _policy(owner, workers_policy_name(owner.name), WORKER, ingress)
    on_nodes = {pool.name for pool in spec.pools if pool.on_host_network}
    on_nodes |= {worker.pool for worker in standing if worker.host_network}
    if on_nodes:
        others = {"key": LABEL_POOL, "operator": "NotIn", "values": sorted(on_nodes)}
        selector = {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), others]}
    policy["spec"]["podSelector"] = selector
    return policy


def _listening(spec: InferenceClusterSpec, standing: Iterable[ObservedWorker]) -> tuple[set[int], set[int]]:
    """Return the ports of engines, and those of agents."""
    common = Counter(worker.ports for worker in standing if worker.ports is not None).most_common(_STANDING)
    both = [pool.ports for pool in spec.pools] + [ports for ports, _ in common]
    return {each.engine for each in both}, {each.agent for each in both}


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


def front_policy(owner: Owner, name: str) -> Manifest:
    """Return the policy of an InferenceGateway's fronts: clients from anywhere; their metrics for Prometheus only."""
    ingress = [{"ports": _ports(PORT_GATEWAY)}, {"from": [PROMETHEUS], "ports": _ports(PORT_GATEWAY_INSIDE)}]
    return _policy(owner, name, COMPONENT_FRONT, ingress)


def batch_policy(owner: Owner, name: str, installation: Installation) -> Manifest:
    """Return the policy of the batch Pod: its gateways, which have checked who asks, and the operator."""
    ingress = [{"from": [_pods(owner, GATEWAY), _operator(installation)], "ports": _ports(PORT_BATCH)}]
    return _policy(owner, name, COMPONENT_BATCH, ingress)


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
