"""Follows the status of the gateway's own InferenceCluster: by which shares KV goes to unlike decode pools."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from fulcrum import kube
from fulcrum.api import names
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


class Cluster(msgspec.Struct):
    """An InferenceCluster as far as routing needs it."""

    status: Status = msgspec.field(default_factory=Status)


_CLUSTERS: Final = kube.Resource(api_version=names.API_VERSION, kind=names.KIND, plural=names.PLURAL)


async def watch_routes(settings: Settings, take: Callable[[Shares], None]) -> None:
    """Hand on the shares that the status says, each time they are read. Returns only when cancelled.

    What was last known stays while the API server is away; without any, routing goes by predictions alone.
    """
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
                        take(_shares(cluster))
                    complained = False
                case kube.Changed(kind=kind, object=cluster) if kind != "DELETED":
                    take(_shares(cluster))
                case kube.Interrupted(error=error) if not complained:
                    complained = True
                    logger.warning("routes_unknown cluster=%s error=%s", name, error)
    finally:
        await api.close()


def _shares(cluster: Cluster) -> Shares:
    return shares_of((route.prefill, route.decode, route.share) for route in cluster.status.routes)
