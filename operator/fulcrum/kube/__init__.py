"""The one Kubernetes client: the official package's asyncio flavour behind JSON-like values, and a list-watch.

The package is imported with the first call: it takes 0.4 s and 25 MB, which `fulcrum --help` need not pay.
"""

from fulcrum.kube.api import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api
from fulcrum.kube.errors import ApiError, ApiFailure, ConfigError, Unreachable
from fulcrum.kube.kube import Kube
from fulcrum.kube.reading import UNREADABLE
from fulcrum.kube.resources import Json, Key, Resource, key_of
from fulcrum.kube.shapes import misshapen
from fulcrum.kube.watch import Bookmark, Changed, Connected, Event, Interrupted, Listed, follow, selector

__all__ = [
    "APPLY",
    "JSON_PATCH",
    "MERGE",
    "STRATEGIC",
    "UNREADABLE",
    "Api",
    "ApiError",
    "ApiFailure",
    "Bookmark",
    "Changed",
    "ConfigError",
    "Connected",
    "Event",
    "Interrupted",
    "Json",
    "Key",
    "Kube",
    "Listed",
    "Resource",
    "Unreachable",
    "follow",
    "key_of",
    "misshapen",
    "selector",
]
