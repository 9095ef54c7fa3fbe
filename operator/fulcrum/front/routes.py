"""An InferenceGateway as its fronts use it: models from its spec, clusters from its status."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from fulcrum.api.front import FrontBackend, FrontCluster, FrontRoute, FrontRoutes
from fulcrum.api.front_types import ClusterRef, FrontModel, InferenceGateway, ServingCluster
from fulcrum.api.names import FRONT_KEYS_PATH, PORT_GATEWAY


def cluster_name(reference: ClusterRef, namespace: str) -> str:
    """`<namespace>/<name>` of a cluster that an object in `namespace` names."""
    return f"{reference.namespace or namespace}/{reference.cluster}"


def keys_directory(secret_name: str) -> str:
    """Where a Secret with API keys is mounted in a front."""
    return f"{FRONT_KEYS_PATH}/{secret_name}"


def routes_of(gateway: InferenceGateway, directories: Mapping[str, str] | None = None) -> FrontRoutes:
    """Return the routes. A cluster that the operator has not put into the status gets nothing.

    `directories`: where Secrets with API keys are mounted, if not where `keys_directory` says.
    """
    known = {cluster.name: _cluster(cluster) for cluster in gateway.status.clusters}
    return FrontRoutes(
        models=tuple(
            _route(model, gateway.metadata.namespace, known, directories or {}) for model in gateway.spec.models
        ),
        clusters=tuple(known.values()),
        replicas=max(gateway.status.replicas, 1),
    )


def _route(
    model: FrontModel, namespace: str, known: dict[str, FrontCluster], directories: Mapping[str, str]
) -> FrontRoute:
    secret = model.auth.secret_name if model.auth is not None else None
    backends = ((cluster_name(backend, namespace), backend.weight) for backend in model.backends)
    fallback = (cluster_name(each, namespace) for each in model.fallback)
    return FrontRoute(
        name=model.name,
        aliases=model.aliases,
        adapter=model.adapter,
        backends=tuple(FrontBackend(cluster=name, weight=weight) for name, weight in backends if name in known),
        fallback=tuple(name for name in fallback if name in known),
        api_keys_directory=None if secret is None else directories.get(secret, keys_directory(secret)),
        requests_per_minute=model.limits.requests_per_minute,
        tokens_per_minute=model.limits.tokens_per_minute,
    )


def _cluster(cluster: ServingCluster) -> FrontCluster:
    parts = urlsplit(cluster.endpoint)
    return FrontCluster(
        name=cluster.name,
        host=parts.hostname or "",
        port=parts.port or PORT_GATEWAY,
        served_name=cluster.served_name,
        headers=cluster.headers,
        takes_keys=cluster.takes_keys,
    )
