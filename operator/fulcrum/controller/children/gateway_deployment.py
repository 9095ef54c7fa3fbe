"""The Deployment of the gateways."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from fulcrum.api.batch import GatewayBatch
from fulcrum.api.batch_types import batch_class
from fulcrum.api.durations import seconds
from fulcrum.api.gateway import GatewayConfig, GatewayHold, GatewayLimits, GatewayPool, GatewayTracing, TransferPrior
from fulcrum.api.gateway_types import GatewayPods, GatewayScaling, PrefixCacheScope, RecordPolicy
from fulcrum.api.internal_token import ANNOTATION_TOKEN, ENV_GATEWAY
from fulcrum.api.names import ENV_GATEWAY_CONFIG, PORT_GATEWAY, PORT_GATEWAY_INSIDE, VOLUME_API_KEYS, gateway_name
from fulcrum.api.objects import without_defaults
from fulcrum.api.pod_types import ResourceAmounts
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.transfers import pool_transfer
from fulcrum.controller.children.internal_secret import token_env
from fulcrum.controller.children.owner import (
    CONTAINER_SECURITY,
    GATEWAY,
    POD_SECURITY,
    Manifest,
    Owner,
    pod_identity_env,
)
from fulcrum.controller.children.probe import http_probe
from fulcrum.controller.installation import Installation

CONTAINER: Final = "gateway"
API_KEYS_DIRECTORY: Final = "/etc/fulcrum/api-keys"
GRACE_MARGIN_SECONDS: Final = 15
"""Beyond the streams' grace: endpoints forget the Pod first, and the process ends after."""
DEFAULT_REQUESTS: Final = {"cpu": "500m", "memory": "256Mi"}
SLOWEST_BODY_BYTES_PER_SECOND: Final = 1024 * 1024
"""A client that sends the largest body more slowly is cut off; small bodies have a minute."""


def gateway_config(owner: Owner, spec: InferenceClusterSpec) -> GatewayConfig:
    """Return the configuration of the cluster's gateways.

    How many there are is not in it, or a change of `replicas` would restart them all; they count themselves.
    """
    return GatewayConfig(
        cluster=owner.name,
        served_name=spec.model.served_name or owner.name,
        model=spec.model.name,
        task=spec.model.task,
        max_model_len=spec.model.max_model_len,
        slo_ttft_seconds=seconds(spec.slo.ttft),
        slo_tpot_seconds=seconds(spec.slo.tpot),
        slo_attainment=spec.slo.attainment,
        admission=spec.admission,
        pools=tuple(
            GatewayPool(name=pool.name, admits=pool.admits, transfer=_transfer_prior(spec, pool)) for pool in spec.pools
        ),
        salt_prefixes=spec.gateway.auth is not None and spec.gateway.auth.prefix_cache is PrefixCacheScope.PER_KEY,
        api_keys_directory=API_KEYS_DIRECTORY if spec.gateway.auth is not None else None,
        adapters=spec.adapters is not None,
        limits=gateway_limits(spec.gateway),
        heartbeat_seconds=None if spec.gateway.heartbeat is None else seconds(spec.gateway.heartbeat),
        cors_origins=spec.gateway.cors.allowed_origins if spec.gateway.cors is not None else (),
        force_include_usage=_forces_usage(spec),
        media_domains=spec.engine.media_domains,
        batch=_batch(spec),
        hold=_hold(spec),
        record=spec.gateway.record is RecordPolicy.ON,
        tracing=None
        if (tracing := spec.telemetry.tracing) is None
        else GatewayTracing(endpoint=tracing.endpoint, sampling_ratio=tracing.sampling_ratio),
    )


def _batch(spec: InferenceClusterSpec) -> GatewayBatch | None:
    qos = batch_class(spec.admission)
    return None if spec.batch is None or qos is None else GatewayBatch(class_name=qos.name)


def _hold(spec: InferenceClusterSpec) -> GatewayHold | None:
    """Return how requests wait while workers start; None where some always run."""
    if spec.balance.idle_after is None:
        return None
    hold = spec.gateway.hold
    return GatewayHold(max_requests=hold.max_requests, max_wait_seconds=seconds(hold.max_wait))


def _transfer_prior(spec: InferenceClusterSpec, pool: Pool) -> TransferPrior | None:
    """Return what moving KV costs a worker of `pool`, rounded: the last digit of a float must not replace Pods."""
    cost = pool_transfer(spec, pool)
    if cost is None:
        return None
    base, rate = (float(f"{figure:.3g}") for figure in (cost.base_seconds, cost.seconds_per_token))
    return TransferPrior(base_seconds=base, seconds_per_token=rate)


def _forces_usage(spec: InferenceClusterSpec) -> bool:
    """Whether an engine's own arguments close every stream with its usage; as vLLM, the last of several counts."""
    forced = False
    for argument in (*spec.engine.args, *(each for pool in spec.pools if pool.engine for each in pool.engine.args)):
        name = argument.partition("=")[0].replace("_", "-")
        if name in ("--enable-force-include-usage", "--no-enable-force-include-usage"):
            forced = not name.startswith("--no-")
    return forced


def gateway_limits(gateway: GatewayPods) -> GatewayLimits:
    """Return the bounds on one client."""
    body_bytes = number_of_bytes(gateway.max_body_size)
    return GatewayLimits(
        max_body_bytes=body_bytes,
        body_timeout_seconds=max(GatewayLimits().body_timeout_seconds, body_bytes / SLOWEST_BODY_BYTES_PER_SECOND),
        request_timeout_seconds=seconds(gateway.request_timeout),
        idle_timeout_seconds=seconds(gateway.idle_timeout),
    )


def gateway_resources(gateway: GatewayPods) -> Manifest:
    """Never BestEffort; what has a limit and no request is requested by Kubernetes as much as its limit."""
    limits = _amounts(gateway.resources.limits)
    defaults = {name: amount for name, amount in DEFAULT_REQUESTS.items() if name not in limits}
    requests = defaults | _amounts(gateway.resources.requests)
    return {kind: amounts for kind, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _amounts(amounts: ResourceAmounts) -> dict[str, str]:
    return {name: amount for name, amount in msgspec.structs.asdict(amounts).items() if amount is not None}


def gateway_placement(gateway: GatewayPods, selector: dict[str, str]) -> Manifest:
    """The fields of the Pod's spec that choose its node, and how its image is had. None of them gives it a right."""
    chosen: Manifest = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ]
    }
    if gateway.node_selector:
        chosen["nodeSelector"] = dict(gateway.node_selector)
    if gateway.tolerations:
        chosen["tolerations"] = [without_defaults(toleration) for toleration in gateway.tolerations]
    if gateway.image_pull_secrets:
        chosen["imagePullSecrets"] = [{"name": secret.name} for secret in gateway.image_pull_secrets]
    if gateway.priority_class_name is not None:
        chosen["priorityClassName"] = gateway.priority_class_name
    return chosen


def probe_port(gateway: GatewayPods, installation: Installation) -> int:
    """Return the port that kubelets ask: the one for the cluster, whose places clients cannot take.

    A pinned image may be of a release that answers probes on the clients' port alone; all answer them there.
    """
    pinned = gateway.image is not None and gateway.image != installation.gateway_image
    return PORT_GATEWAY if pinned else PORT_GATEWAY_INSIDE


def wanted_replicas(gateway: GatewayPods, live_replicas: int | None) -> int:
    """Return the count to ask for.

    Leaving the field out would hand it over, too, but resets it to 1 where nothing else has written it yet.
    """
    if gateway.scaling is GatewayScaling.FIXED or live_replicas is None:
        return gateway.replicas
    return live_replicas


def gateway_deployment(
    owner: Owner,
    spec: InferenceClusterSpec,
    installation: Installation,
    *,
    token_fingerprint: str,
    live_replicas: int | None = None,
) -> Manifest:
    """Return the gateway Deployment: a new Pod is ready before an old one goes.

    Another token, and so another `token_fingerprint`, replaces the Pods. `live_replicas` is the count that the
    Deployment has now (None: there is no Deployment); with `gateway.scaling: External` it stays.
    """
    config = gateway_config(owner, spec)
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 (a mount)
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if spec.gateway.auth is not None:
        # Mounted, not read from the API: the gateway needs no right to read Secrets.
        mounts.append({"name": VOLUME_API_KEYS, "mountPath": API_KEYS_DIRECTORY, "readOnly": True})
        volumes.append({"name": VOLUME_API_KEYS, "secret": {"secretName": spec.gateway.auth.secret_name}})
    selector = owner.selector(GATEWAY)
    port = probe_port(spec.gateway, installation)
    container: Manifest = {
        "name": CONTAINER,
        "image": spec.gateway.image or installation.gateway_image,
        "command": ["fulcrum", "gateway"],
        "env": [
            {"name": ENV_GATEWAY_CONFIG, "value": msgspec.json.encode(without_defaults(config)).decode()},
            *pod_identity_env(),
            token_env(ENV_GATEWAY, owner.name),
        ],
        "ports": [
            {"name": "http", "containerPort": PORT_GATEWAY, "protocol": "TCP"},
            {"name": "inside", "containerPort": PORT_GATEWAY_INSIDE, "protocol": "TCP"},
        ],
        "readinessProbe": http_probe("/ready", port=port, period_seconds=1, failures=3),
        "livenessProbe": http_probe("/health", port=port, period_seconds=10, failures=3),
        "startupProbe": http_probe("/health", port=port, period_seconds=1, failures=60),
        "resources": gateway_resources(spec.gateway),
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owner.metadata(gateway_name(owner.name), GATEWAY),
        "spec": {
            "replicas": wanted_replicas(spec.gateway, live_replicas),
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {
                    "labels": owner.labels(GATEWAY),
                    "annotations": {ANNOTATION_TOKEN: token_fingerprint},
                },
                "spec": {
                    "serviceAccountName": gateway_name(owner.name),
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": math.ceil(config.shutdown_grace_seconds) + GRACE_MARGIN_SECONDS,
                    "securityContext": dict(POD_SECURITY),
                    **gateway_placement(spec.gateway, selector),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }
