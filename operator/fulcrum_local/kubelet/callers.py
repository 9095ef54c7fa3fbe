"""Callers of the kubelet's own API: the API server says whose a bearer token is, and what it may do (`nodes/proxy`)."""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from fulcrum.kube import Api, ApiFailure

logger = logging.getLogger(__name__)


class Callers:
    """Checks requests as a kubelet with webhook authentication and authorization does; nothing is remembered."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    async def check(self, request: web.Request) -> None:
        """Return when the caller may go on. Raises HTTPUnauthorized, HTTPForbidden, HTTPServiceUnavailable."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise web.HTTPUnauthorized(text="Unauthorized: send a bearer token of the API server")
        try:
            user = await self._user(token.strip())
            if user is None:
                raise web.HTTPUnauthorized(text="Unauthorized: the API server does not know this token")
            allowed = await self._may_use_node(user)
        except ApiFailure as error:
            logger.warning("caller_not_checked error=%s", error)
            text = f"the API server cannot be asked about the caller ({error}); the kubelet needs system:auth-delegator"
            raise web.HTTPServiceUnavailable(text=text) from error
        if not allowed:
            name = user.get("username", "")
            text = f"Forbidden (user={name}, verb=get, resource=nodes, subresource=proxy, node={self._node_name})"
            raise web.HTTPForbidden(text=text)

    async def _user(self, token: str) -> dict[str, Any] | None:
        status = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        user: dict[str, Any] | None = status.get("user") if status.get("authenticated") else None
        return user

    async def _may_use_node(self, user: dict[str, Any]) -> bool:
        access = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": self._node_name}
        spec = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
            "resourceAttributes": access,
        }
        return bool((await self._review("authorization.k8s.io", "SubjectAccessReview", spec)).get("allowed"))

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        answer = await self._api.create(f"/apis/{group}/v1/{kind.lower()}s", body)
        status: dict[str, Any] = answer.get("status") or {}
        return status
