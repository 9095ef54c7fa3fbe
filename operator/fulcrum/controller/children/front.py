"""What an InferenceGateway consists of, as a pure function of its spec."""

from __future__ import annotations

import math

import msgspec

from fulcrum.api.front import FrontConfig
from fulcrum.api.front_types import InferenceGatewaySpec
from fulcrum.api.names import (
    COMPONENT_FRONT,
    ENV_FRONT_CONFIG,
    FRONT_PLURAL,
    GROUP,
    PORT_GATEWAY,
    PORT_GATEWAY_INSIDE,
    front_name,
)
from fulcrum.api.objects import without_defaults
from fulcrum.controller.children.disruption_budget import budget_of
from fulcrum.controller.children.gateway_deployment import (
    GRACE_MARGIN_SECONDS,
    gateway_limits,
    gateway_placement,
    gateway_resources,
    wanted_replicas,
)
from fulcrum.controller.children.network_policy import front_policy
from fulcrum.controller.children.owner import CONTAINER_SECURITY, POD_SECURITY, Manifest, Owner, pod_identity_env
from fulcrum.controller.children.probe import http_probe
from fulcrum.controller.children.service import service_of
from fulcrum.controller.installation import Installation
from fulcrum.front.routes import keys_directory


def front_children(
    owner: Owner, spec: InferenceGatewaySpec, installation: Installation, *, live_replicas: int | None
) -> tuple[Manifest, ...]:
    """Return every child, in an order in which each finds what it needs; `live_replicas` as of gateways."""
    name = front_name(owner.name)
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": owner.metadata(name, COMPONENT_FRONT)},
        *_rights(owner, name),
        front_policy(owner, name),
        service_of(owner, spec.gateway.service, name, COMPONENT_FRONT),
        _deployment(owner, name, spec, installation, live_replicas),
        budget_of(owner, name, COMPONENT_FRONT, {"maxUnavailable": 1}),
    )


def _rights(owner: Owner, name: str) -> tuple[Manifest, Manifest]:
    """A front may read its own InferenceGateway, and nothing else."""
    api = "rbac.authorization.k8s.io"
    rule = {
        "apiGroups": [GROUP], "resources": [FRONT_PLURAL], "resourceNames": [owner.name], "verbs": ["list", "watch"],
    }  # fmt: skip
    metadata = owner.metadata(name, COMPONENT_FRONT)
    return (
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
        },
    )


def _deployment(
    owner: Owner, name: str, spec: InferenceGatewaySpec, installation: Installation, live_replicas: int | None
) -> Manifest:
    """A new Pod is ready before an old one goes. Models are not in it: fronts follow those without a restart."""
    gateway = spec.gateway
    config = FrontConfig(
        name=owner.name,
        limits=gateway_limits(gateway),
        cors_origins=gateway.cors.allowed_origins if gateway.cors is not None else (),
        api_keys_directories={secret: keys_directory(secret) for secret in _secrets(spec)},
    )
    selector = owner.selector(COMPONENT_FRONT)
    mounts, volumes = _keys(spec)
    container: Manifest = {
        "name": "front",
        "image": gateway.image or installation.gateway_image,
        "command": ["fulcrum", "front"],
        "env": [
            {"name": ENV_FRONT_CONFIG, "value": msgspec.json.encode(without_defaults(config)).decode()},
            *pod_identity_env(),
        ],
        "ports": [
            {"name": "http", "containerPort": PORT_GATEWAY, "protocol": "TCP"},
            {"name": "inside", "containerPort": PORT_GATEWAY_INSIDE, "protocol": "TCP"},
        ],
        "readinessProbe": http_probe("/ready", port=PORT_GATEWAY_INSIDE, period_seconds=1, failures=3),
        "livenessProbe": http_probe("/health", port=PORT_GATEWAY_INSIDE, period_seconds=10, failures=3),
        "startupProbe": http_probe("/health", port=PORT_GATEWAY_INSIDE, period_seconds=1, failures=60),
        "resources": gateway_resources(gateway),
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108 (a mount)
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owner.metadata(name, COMPONENT_FRONT),
        "spec": {
            "replicas": wanted_replicas(gateway, live_replicas),
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": owner.labels(COMPONENT_FRONT)},
                "spec": {
                    "serviceAccountName": name,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": math.ceil(config.shutdown_grace_seconds) + GRACE_MARGIN_SECONDS,
                    "securityContext": dict(POD_SECURITY),
                    **gateway_placement(gateway, selector),
                    "containers": [container],
                    "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
                },
            },
        },
    }


def _secrets(spec: InferenceGatewaySpec) -> list[str]:
    return sorted({model.auth.secret_name for model in spec.models if model.auth is not None})


def _keys(spec: InferenceGatewaySpec) -> tuple[list[Manifest], list[Manifest]]:
    """Mounts and volumes of the Secrets with API keys: mounted, so that fronts need no right to read Secrets."""
    numbered = [(f"api-keys-{number}", secret) for number, secret in enumerate(_secrets(spec))]
    mounts: list[Manifest] = [
        {"name": volume, "mountPath": keys_directory(secret), "readOnly": True} for volume, secret in numbered
    ]
    return mounts, [{"name": volume, "secret": {"secretName": secret}} for volume, secret in numbered]
