"""The HTTP server: authenticates, authorizes, and hands each request to what answers it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from aiohttp import web

from fulcrum_local.apiserver import discovery, errors
from fulcrum_local.apiserver.authentication import AUTHENTICATED, Authenticator, User
from fulcrum_local.apiserver.authorization import Attributes, Authorizer
from fulcrum_local.apiserver.bodies import LONGEST_BODY_BYTES
from fulcrum_local.apiserver.call import Call, default_manager
from fulcrum_local.apiserver.chaos import Chaos
from fulcrum_local.apiserver.errors import ApiError
from fulcrum_local.apiserver.kinds import Kind, Registry
from fulcrum_local.apiserver.metrics import Metrics
from fulcrum_local.apiserver.openapi import OpenApi
from fulcrum_local.apiserver.pod_subresources import PodSubresources
from fulcrum_local.apiserver.presentation import encode
from fulcrum_local.apiserver.request import Target, check_numbers, parse_target
from fulcrum_local.apiserver.resources import Resources
from fulcrum_local.apiserver.reviews import Reviews
from fulcrum_local.apiserver.scale import Scales

logger = logging.getLogger(__name__)
_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})
SubresourceHandler = Callable[[Call], Awaitable[web.StreamResponse]]


class ApiServer:
    """Everything that answers requests, behind one handler."""

    def __init__(
        self,
        *,
        registry: Registry,
        authenticator: Authenticator,
        authorizer: Authorizer,
        metrics: Metrics,
        resources: Resources,
        reviews: Reviews,
        pods: PodSubresources,
        scales: Scales,
        address: str,
        chaos: Chaos | None = None,
    ) -> None:
        self._registry = registry
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._metrics = metrics
        self._resources = resources
        self._reviews = reviews
        self._openapi = OpenApi(registry)
        self._address = address
        self._chaos = chaos
        self._subresources: Mapping[str, SubresourceHandler] = {
            "status": resources.handle,
            "finalize": resources.handle,
            "scale": scales.handle,
            "log": pods.log,
            "eviction": pods.evict,
            "binding": pods.bind,
            "token": reviews.token,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever goes wrong becomes a Status."""
        start = time.perf_counter()
        target = parse_target(request.method, request.path, request.query)
        user_name = ""
        try:
            user = self._authenticate(request, target)
            user_name = user.name
            response = await self._answer(request, target, user)
        except ApiError as error:
            response = error_response(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except RecursionError:
            response = error_response(errors.bad_request("the object provided is nested too deep"))
        except Exception:
            logger.exception("request_failed", extra={"method": request.method, "path": request.path})
            response = error_response(ApiError(500, "Internal error occurred: see the log of the API server"))
        self._metrics.count(
            target
            if self._registry.find(target.group, target.version, target.resource)
            else Target(path="", verb=target.verb),
            user=user_name,
            client=default_manager(request),
            code=response.status,
            dry_run="dryRun" in request.query,
            apply=request.headers.get("Content-Type", "").startswith("application/apply-patch"),
            seconds=time.perf_counter() - start,
        )
        return response

    def _authenticate(self, request: web.BaseRequest, target: Target) -> User:
        user = self._authenticator.user(request.headers.get("Authorization"))
        name = request.headers.get("Impersonate-User")
        if not name:
            return user
        groups = tuple(request.headers.getall("Impersonate-Group", []))
        wanted = [("users", name, ""), *(("groups", group, "") for group in groups)]
        parts = name.split(":")
        if name.startswith("system:serviceaccount:") and len(parts) == 4:
            wanted[0] = ("serviceaccounts", parts[3], parts[2])
            groups = groups or ("system:serviceaccounts", f"system:serviceaccounts:{parts[2]}")
        for resource, value, namespace in wanted:
            access = Attributes(verb="impersonate", resource=resource, name=value, namespace=namespace)
            if not self._authorizer.allows(user, access):
                mode = "serviceaccount" if wanted[0][0] == "serviceaccounts" else "user-info"
                raise _denied(user, _access(target, f"impersonate-on:{mode}:{target.verb}"))
        return User(name=name, groups=(*groups, AUTHENTICATED))

    async def _answer(self, request: web.BaseRequest, target: Target, user: User) -> web.StreamResponse:
        kind = self._registry.find(target.group, target.version, target.resource) if target.is_resource else None
        self._authorize(target, user, request.query)
        if not target.is_resource:
            return await self._answer_path(request)
        if kind is None:
            raise errors.no_such_path()
        if target.namespace and not kind.namespaced and kind.storage != "namespaces":
            raise errors.no_such_path()
        raw = await _read_body(request) if request.can_read_body else b""
        if kind.storage == "namespaces":
            # The authorizer sees a namespace's name as its namespace too; the objects themselves have none.
            target = _without_namespace(target)
        check_numbers(target, request.query)
        call = Call(request=request, target=target, kind=kind, user=user, raw=raw)
        fault = self._chaos.fault(target, user) if self._chaos is not None else None
        if fault is not None and not fault.after:
            raise fault.error
        response = await self._dispatch(call, kind)
        if fault is not None:
            raise fault.error
        return response

    async def _dispatch(self, call: Call, kind: Kind) -> web.StreamResponse:
        target = call.target
        if target.verb in ("update", "patch") and not target.name:
            raise errors.method_not_allowed()
        if target.verb == "create" and target.name and not target.subresource:
            raise errors.method_not_allowed()
        if not target.subresource:
            if "get" not in kind.verbs:
                if target.verb not in kind.verbs:
                    raise errors.method_not_allowed()
                return self._reviews.answer(call)
            if target.verb not in kind.verbs:
                raise errors.method_not_allowed()
            return await self._resources.handle(call)
        sub = kind.subresource(target.subresource)
        if sub is None:
            raise errors.no_such_path()
        if target.verb not in sub.verbs:
            raise errors.method_not_allowed()
        return await self._subresources[sub.name](call)

    def _authorize(self, target: Target, user: User, query: Mapping[str, str]) -> None:
        access = _access(target, target.verb, query)
        if not self._authorizer.allows(user, access):
            raise _denied(user, access)

    async def _answer_path(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if request.method not in ("GET", "HEAD"):
            raise errors.method_not_allowed()
        if path in _HEALTH or path.rpartition("/")[0] in _HEALTH:
            return web.Response(text="ok")
        if path == "/metrics":
            return web.Response(
                body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            )
        if path.startswith("/openapi/"):
            return self._openapi.answer(request)
        return self._answer_discovery(request, path)

    def _answer_discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        registry = self._registry
        parts = path.strip("/").split("/")
        aggregated = discovery.wants_aggregated(request.headers.get("Accept", ""))
        match parts:
            case [""]:
                document: errors.Json | None = {"paths": list(discovery.known_paths(registry))}
            case ["version"]:
                document = discovery.version_info()
            case ["api" | "apis" as root] if aggregated:
                body = encode(discovery.aggregated(registry, core=root == "api"))
                return web.Response(body=body, headers={"Content-Type": discovery.AGGREGATED_TYPE})
            case ["api"]:
                document = discovery.core_versions(self._address)
            case ["apis"]:
                document = discovery.group_list(registry)
            case ["api", version]:
                document = discovery.resource_list(registry, "", version)
            case ["apis", group]:
                document = discovery.group(registry, group)
            case ["apis", group, version]:
                document = discovery.resource_list(registry, group, version)
            case _:
                document = None
        if document is None:
            raise errors.no_such_path()
        return web.Response(body=encode(document), content_type="application/json")


def _without_namespace(target: Target) -> Target:
    import dataclasses

    return dataclasses.replace(target, namespace="")


async def _read_body(request: web.BaseRequest) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > LONGEST_BODY_BYTES:
            raise ApiError(413, f"Request entity too large: limit is {LONGEST_BODY_BYTES}")
    return bytes(body)


def error_response(error: ApiError) -> web.Response:
    """An error as the answer to a request."""
    headers = {} if error.retry_after_seconds is None else {"Retry-After": str(error.retry_after_seconds)}
    return web.Response(
        body=json.dumps(error.status()).encode(), status=error.code, content_type="application/json", headers=headers
    )


def _access(target: Target, verb: str, query: Mapping[str, str] = MappingProxyType({})) -> Attributes:
    """What is to be allowed. A list or a watch of one name is about that name, as in Kubernetes."""
    name = target.name
    if not name and verb in ("list", "watch", "deletecollection"):
        fields = dict(part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if "=" in part)
        name = fields.get("metadata.name", "").removeprefix("=")
    return Attributes(
        verb=verb,
        group=target.group,
        resource=target.resource,
        subresource=target.subresource,
        namespace=target.namespace,
        name=name,
        path=target.path,
    )


def _denied(user: User, access: Attributes) -> ApiError:
    if not access.resource:
        why = f'User "{user.name}" cannot {access.verb} path "{access.path}"'
        return ApiError(403, f"forbidden: {why}", details={})
    what = f"{access.resource}/{access.subresource}" if access.subresource else access.resource
    where = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {access.verb} resource "{what}" in API group "{access.group}" {where}'
    return errors.forbidden(access.group, access.resource, access.name, why)
