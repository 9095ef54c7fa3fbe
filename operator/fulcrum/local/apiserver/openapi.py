"""OpenAPI documents (placeholder until the builder lands)."""

from __future__ import annotations

from aiohttp import web

from fulcrum.local.apiserver import errors
from fulcrum.local.apiserver.kinds import Registry


class OpenApi:
    """Serves `/openapi/...`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answer(self, request: web.BaseRequest) -> web.Response:
        """404 for now."""
        raise errors.no_such_path()
