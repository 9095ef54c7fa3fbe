"""Contract between controller and the fronts of an InferenceGateway.

As with gateways, both may be of different releases: defaults are left out, and unknown fields are ignored.
"""

from __future__ import annotations

import msgspec

from fulcrum.api.gateway import GatewayLimits


class FrontCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster that requests are sent to."""

    name: str
    """`<namespace>/<name>`."""
    host: str
    port: int
    served_name: str
    """What its gateway takes as `model`."""
    headers: tuple[str, ...] = ()
    """Headers of clients that say the QoS class, in lower case."""
    takes_keys: bool = True
    """It may see API keys that a front has checked: it is in the fronts' own namespace."""


class FrontBackend(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster with its share of a model's new conversations."""

    cluster: str
    weight: int = 1


class FrontRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model."""

    name: str
    aliases: tuple[str, ...] = ()
    adapter: str | None = None
    """What clusters are sent as `model`; None: their `served_name`."""
    backends: tuple[FrontBackend, ...] = ()
    fallback: tuple[str, ...] = ()
    api_keys_directory: str | None = None
    """Where the Secret with the model's API keys is mounted; None: any client may ask."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class FrontRoutes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The models and their clusters, made from the InferenceGateway. Fronts follow its changes without a restart."""

    models: tuple[FrontRoute, ...] = ()
    clusters: tuple[FrontCluster, ...] = ()
    replicas: int = 1
    """Fronts that share the limits."""


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One JSON document in `FULCRUM_FRONT_CONFIG`: what only a new process can change."""

    name: str
    """Of the InferenceGateway."""
    limits: GatewayLimits = GatewayLimits()
    cors_origins: tuple[str, ...] = ()
    shutdown_grace_seconds: float = 120.0
    api_keys_directories: dict[str, str] = {}
    """Where each Secret with API keys is mounted, by its name; one that is not here is at `FRONT_KEYS_PATH`."""
    routes: FrontRoutes | None = None
    """Instead of the InferenceGateway, to run without Kubernetes."""
