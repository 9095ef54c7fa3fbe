"""What `spec.batch` consists of: one Pod that keeps files on a claim and sends the lines of batches to the gateways."""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.api.batch import BatchConfig, BatchLimits
from fulcrum.api.batch_types import Batch, batch_class
from fulcrum.api.durations import seconds
from fulcrum.api.internal_token import ANNOTATION_TOKEN, ENV_GATEWAY
from fulcrum.api.names import COMPONENT_BATCH, ENV_BATCH_CONFIG, PORT_BATCH, batch_name
from fulcrum.api.objects import without_defaults
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children.gateway_deployment import gateway_placement
from fulcrum.controller.children.internal_secret import token_env
from fulcrum.controller.children.network_policy import batch_policy
from fulcrum.controller.children.owner import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    Manifest,
    Owner,
    pod_identity_env,
)
from fulcrum.controller.children.probe import http_probe
from fulcrum.controller.installation import Installation

_DIRECTORY: Final = "/var/lib/fulcrum-batch"
_VOLUME: Final = "files"
_USER: Final = 65532
"""Group of the claim's files: that of the image's user, or a fresh volume could only be written by root."""
_RESOURCES: Final[Manifest] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_GRACE_SECONDS: Final = 30


def batch_children(
    owner: Owner,
    spec: InferenceClusterSpec,
    installation: Installation,
    *,
    token_fingerprint: str,
    gateway: str | None,
    live: Manifest | None,
) -> tuple[Manifest, ...]:
    """Return every child. There is no Service: gateways find the Pod as they find workers.

    `gateway` is the address of the gateways' Service, None: not known yet. `live` is the Deployment that there is.
    Without `spec.batch` that one is scaled to nothing, because the operator may delete none; the claim is free then.
    """
    if spec.batch is None:
        return () if live is None else (_stopped(owner, live),)
    policy = batch_policy(owner, batch_name(owner.name), installation)
    if gateway is None:
        return (policy,)
    image = spec.gateway.image or installation.gateway_image
    config = _config(owner, spec, spec.batch, gateway)
    return policy, _deployment(owner, spec, config, spec.batch.claim, image=image, token_fingerprint=token_fingerprint)


def _stopped(owner: Owner, live: Manifest) -> Manifest:
    """Return a Deployment as it is, without Pods."""
    metadata = owner.metadata(batch_name(owner.name), COMPONENT_BATCH)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {**live["spec"], "replicas": 0},
    }


def _config(owner: Owner, spec: InferenceClusterSpec, batch: Batch, gateway: str) -> BatchConfig:
    qos = batch_class(spec.admission)
    match = None if qos is None else qos.match
    return BatchConfig(
        cluster=owner.name,
        gateway_host=gateway,
        task=spec.model.task,
        class_header=None if match is None else match.header,
        class_value=None if match is None else match.value,
        directory=_DIRECTORY,
        limits=BatchLimits(
            max_file_bytes=number_of_bytes(batch.max_file_size),
            max_files=batch.max_files,
            max_lines=batch.max_lines,
            max_line_bytes=number_of_bytes(spec.gateway.max_body_size),
            max_in_flight=batch.max_in_flight,
            retention_seconds=seconds(batch.retention),
        ),
    )


def _deployment(
    owner: Owner, spec: InferenceClusterSpec, config: BatchConfig, claim: str, *, image: str, token_fingerprint: str
) -> Manifest:
    """One Pod at most: the next one starts when the last one has ended, and takes the directory over."""
    container: Manifest = {
        "name": "batch",
        "image": image,
        "command": ["fulcrum", "batch"],
        "env": [
            {"name": ENV_BATCH_CONFIG, "value": msgspec.json.encode(without_defaults(config)).decode()},
            *pod_identity_env(),
            token_env(ENV_GATEWAY, owner.name),
        ],
        "ports": [{"name": "http", "containerPort": PORT_BATCH, "protocol": "TCP"}],
        "readinessProbe": http_probe("/ready", port=PORT_BATCH, period_seconds=2, failures=3),
        "livenessProbe": http_probe("/health", port=PORT_BATCH, period_seconds=10, failures=6),
        "startupProbe": http_probe("/health", port=PORT_BATCH, period_seconds=1, failures=120),
        "resources": _RESOURCES,
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (a mount)
            {"name": _VOLUME, "mountPath": _DIRECTORY},
        ],
    }
    selector = owner.selector(COMPONENT_BATCH)
    placement = gateway_placement(spec.gateway, selector)
    del placement["topologySpreadConstraints"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owner.metadata(batch_name(owner.name), COMPONENT_BATCH),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {
                    "labels": owner.labels(COMPONENT_BATCH),
                    "annotations": {ANNOTATION_TOKEN: token_fingerprint},
                },
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": _GRACE_SECONDS,
                    "securityContext": {**POD_SECURITY, "fsGroup": _USER, "fsGroupChangePolicy": "OnRootMismatch"},
                    **placement,
                    "containers": [container],
                    "volumes": [
                        {"name": "tmp", "emptyDir": {}},
                        {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}},
                    ],
                },
            },
        },
    }
