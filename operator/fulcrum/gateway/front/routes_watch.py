"""Follows the fronts' own ConfigMap, in which the operator keeps the models and their clusters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from fulcrum import kube
from fulcrum.api import names
from fulcrum.api.front import FrontRoutes
from fulcrum.gateway.front.settings import FrontSettings

logger = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 300.0
"""A new LIST this often bounds how long a lost event counts."""
_CONFIG_MAPS: Final = kube.Resource(api_version="v1", kind="ConfigMap", plural="configmaps")
_decoder: Final = msgspec.json.Decoder(FrontRoutes)


class ConfigMap(msgspec.Struct):
    """A ConfigMap as far as fronts need it."""

    data: dict[str, str] = {}


async def watch_front_routes(settings: FrontSettings, take: Callable[[FrontRoutes], None]) -> None:
    """Hand on the routes each time they are read. Returns only when cancelled.

    What was last known stays while the API server is away, or the ConfigMap is gone or cannot be read.
    """
    name = names.front_name(settings.config.name)
    api = kube.Api()
    complained = False
    try:
        path = _CONFIG_MAPS.collection(settings.namespace)
        selectors = kube.selector({}, {"metadata.name": name})
        async for event in kube.follow(api, path, ConfigMap, selectors=selectors, relist_seconds=_RESYNC_SECONDS):
            match event:
                case kube.Listed(items=items):
                    for each in items:
                        _take(each, name, take)
                    complained = False
                case kube.Changed(kind=kind, object=each) if kind != "DELETED":
                    _take(each, name, take)
                case kube.Interrupted(error=error) if not complained:
                    complained = True
                    logger.warning("front_routes_unknown config_map=%s error=%s", name, error)
    finally:
        await api.close()


def _take(config_map: ConfigMap, name: str, take: Callable[[FrontRoutes], None]) -> None:
    document = config_map.data.get(names.FRONT_ROUTES_KEY, "")
    try:
        routes = _decoder.decode(document)
    except msgspec.DecodeError as error:
        logger.warning("front_routes_unreadable config_map=%s error=%s; the last ones stay", name, error)
        return
    take(routes)
