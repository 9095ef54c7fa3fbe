"""Follows the fronts' own InferenceGateway: models in its spec, and the clusters that the operator lets it use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from fulcrum import kube
from fulcrum.api import names
from fulcrum.api.errors import InvalidValueError
from fulcrum.api.front import FrontRoutes
from fulcrum.api.objects import load_inference_gateway
from fulcrum.front.routes import routes_of
from fulcrum.gateway.front.settings import FrontSettings

logger = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 300.0
"""A new LIST this often bounds how long a lost event counts."""
_GATEWAYS: Final = kube.Resource(api_version=names.API_VERSION, kind=names.FRONT_KIND, plural=names.FRONT_PLURAL)


async def watch_object(settings: FrontSettings, take: Callable[[FrontRoutes], None]) -> None:
    """Hand on the routes each time they change. Returns only when cancelled.

    What was last known stays while the API server is away, or the object is gone or cannot be read.
    """
    name = settings.config.name
    api = kube.Api()
    last: FrontRoutes | None = None
    complained = False
    try:
        path = _GATEWAYS.collection(settings.namespace)
        selectors = kube.selector({}, {"metadata.name": name})
        async for event in kube.follow(api, path, dict[str, Any], selectors=selectors, relist_seconds=_RESYNC_SECONDS):
            found: list[dict[str, Any]] = []
            match event:
                case kube.Listed(items=items):
                    found, complained = list(items), False
                case kube.Changed(kind=kind, object=each) if kind != "DELETED":
                    found = [each]
                case kube.Interrupted(error=error) if not complained:
                    complained = True
                    logger.warning("front_object_unknown name=%s error=%s", name, error)
            for each in found:
                routes = _routes(each, name, settings.config.api_keys_directories)
                if routes is not None and routes != last:
                    last = routes
                    take(routes)
    finally:
        await api.close()


def _routes(document: dict[str, Any], name: str, directories: Mapping[str, str]) -> FrontRoutes | None:
    """Routes of an object; None: there are none yet, or it cannot be read."""
    kinds = {"apiVersion": names.API_VERSION, "kind": names.FRONT_KIND}  # items of a list do not repeat them
    try:
        gateway = load_inference_gateway({**document, **kinds})
    except InvalidValueError as error:
        logger.warning("front_object_unreadable name=%s error=%s; the last routes stay", name, error)
        return None
    return routes_of(gateway, directories) if gateway.status.observed_generation is not None else None
