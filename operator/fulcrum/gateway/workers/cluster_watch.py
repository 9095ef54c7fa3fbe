"""Follows the gateway's own InferenceCluster: shares by which KV goes to unlike decode pools, and LoRA adapters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from fulcrum import kube
from fulcrum.api import names
from fulcrum.api.worker import AdapterSource
from fulcrum.gateway.config import Settings
from fulcrum.routing.kv_routes import Shares, shares_of

logger = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 300.0
"""A new LIST this often bounds how long a lost event counts; shares change over minutes."""


class Route(msgspec.Struct):
    """One entry of `status.routes`."""

    prefill: str = ""
    decode: str = ""
    share: float = 0.0


class Status(msgspec.Struct):
    """Of the status only what routing needs is decoded."""

    routes: list[Route] = []


class Adapters(msgspec.Struct):
    """`spec.adapters`."""

    list: tuple[AdapterSource, ...] = ()


class Spec(msgspec.Struct):
    """Of the spec only what changes without a restart of gateways."""

    adapters: Adapters | None = None


class Cluster(msgspec.Struct):
    """An InferenceCluster as far as routing needs it."""

    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


_CLUSTERS: Final = kube.Resource(api_version=names.API_VERSION, kind=names.KIND, plural=names.PLURAL)


async def watch_cluster(
    settings: Settings,
    take_shares: Callable[[Shares], None],
    take_adapters: Callable[[tuple[AdapterSource, ...]], None],
) -> None:
    """Hand on shares and adapters each time they are read. Returns only when cancelled.

    What was last known stays while the API server is away; without any, routing goes by predictions alone.
    """

    def take(cluster: Cluster) -> None:
        take_shares(_shares(cluster))
        take_adapters(cluster.spec.adapters.list if cluster.spec.adapters is not None else ())

    name = settings.config.cluster
    path = _CLUSTERS.collection(settings.namespace)
    api = kube.Api()
    complained = False
    try:
        selectors = kube.selector({}, {"metadata.name": name})
        async for event in kube.follow(api, path, Cluster, selectors=selectors, relist_seconds=_RESYNC_SECONDS):
            match event:
                case kube.Listed(items=items):
                    for cluster in items:
                        take(cluster)
                    complained = False
                case kube.Changed(kind=kind, object=cluster) if kind != "DELETED":
                    take(cluster)
                case kube.Interrupted(error=error) if not complained:
                    complained = True
                    logger.warning("cluster_unknown cluster=%s error=%s", name, error)
    finally:
        await api.close()


def _shares(cluster: Cluster) -> Shares:
    return shares_of((route.prefill, route.decode, route.share) for route in cluster.status.routes)
