"""Objects of the API as a level-triggered process uses them: JSON-like values, absence as None."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar

from fulcrum.kube.api import APPLY, MERGE, Api
from fulcrum.kube.errors import ApiError
from fulcrum.kube.resources import Json, Key, Resource
from fulcrum.kube.watch import list_pages, selector

_T = TypeVar("_T")


class Kube:
    """An API client. Use as an async context manager.

    Calls raise `ApiFailure` except for what a level-triggered controller expects: an absent object (404) reads as None
    and is no error to change or delete, one that exists already (409) is no error to create.
    """

    def __init__(self, api: Api, *, field_manager: str) -> None:
        self.api = api
        self._field_manager = field_manager

    async def __aenter__(self) -> Self:
        await self.api.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.api.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return an object, None where there is none."""
        return await self._counted("get", resource, self.api.get(resource.path((namespace, name))), absent=(404,))

    async def list(self, resource: Resource, namespace: str | None, labels: Mapping[str, str]) -> list[Json]:
        """Return the objects with all of `labels`, in one namespace or (None) in all."""
        pages = list_pages(self.api, resource.collection(namespace), selector(labels), dict[str, Any])
        found = await self._counted("list", resource, pages)
        return [] if found is None else [*found[0], *(each.stub for each in found[2])]

    async def create(self, resource: Resource, manifest: Json) -> Json | None:
        """Create an object in the namespace of its metadata and return it; None when the name is taken."""
        self._before_write()
        path = resource.collection(manifest["metadata"].get("namespace", ""))
        call = self.api.create(path, manifest, {"fieldManager": self._field_manager})
        return self._written(resource, await self._counted("create", resource, call, absent=(409,)))

    async def replace(self, resource: Resource, manifest: Json) -> Json | None:
        """Replace the object that `manifest` was read as; None when it is gone or was changed meanwhile."""
        self._before_write()
        metadata = manifest["metadata"]
        path = resource.path((metadata.get("namespace", ""), metadata["name"]))
        call = self.api.call("PUT", path, body=manifest, params={"fieldManager": self._field_manager})
        return self._written(resource, await self._counted("update", resource, call, absent=(404, 409)))

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json | None:
        """Merge `patch` into an object; None when it is gone, or is another one than the patch's uid names."""
        self._before_write()
        call = self.api.patch(
            resource.path((namespace, name)), patch, content_type=MERGE, params={"fieldManager": self._field_manager}
        )
        try:
            return self._written(resource, await self._counted("patch", resource, call, absent=(404, 409)))
        except ApiError as error:
            # A real server validates a patch against the object of that name: its uid cannot become another one.
            if error.code == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in str(error):
                return None
            raise

    async def apply(self, resource: Resource, namespace: str, name: str, manifest: Json) -> Json | None:
        """Apply `manifest` (server-side), taking over fields that others hold."""
        self._before_write()
        return self._written(
            resource, await self._counted("apply", resource, self._applied(resource.path((namespace, name)), manifest))
        )

    async def apply_status(self, resource: Resource, namespace: str, name: str, status: Json) -> Json | None:
        """Apply a whole status; None when the object is gone."""
        self._before_write()
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": status,
        }
        call = self._applied(resource.path((namespace, name), "status"), manifest)
        return self._written(resource, await self._counted("apply_status", resource, call, absent=(404,)))

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete the object that `uid` names, which may be gone already; None takes whatever has the name."""
        self._before_write()
        call = self.api.delete(resource.path((namespace, name)), uid=uid, grace_seconds=grace_seconds)
        # 409: another object has the name by now.
        gone = (404, 409) if uid is not None else (404,)
        if await self._counted("delete", resource, call, absent=gone) is not None and uid is not None:
            self._deleted(resource, (namespace, name), uid)

    async def _applied(self, path: str, manifest: Json) -> Json:
        params = {"fieldManager": self._field_manager, "force": "true"}
        return await self.api.patch(path, manifest, content_type=APPLY, params=params)

    async def _counted(
        self, verb: str, resource: Resource, call: Awaitable[_T], *, absent: tuple[int, ...] = ()
    ) -> _T | None:
        began = time.monotonic()
        outcome = "error"
        try:
            answer = await call
        except ApiError as error:
            outcome = str(error.code)
            if error.code in absent:
                return None
            raise
        else:
            outcome = "ok"
            return answer
        finally:
            self._count(verb, resource, outcome, time.monotonic() - began)

    def _before_write(self) -> None:
        """A write is about to be sent; a subclass may raise."""

    def _written(self, resource: Resource, obj: Json | None) -> Json | None:
        """A write was answered with `obj`; a subclass may note it."""
        return obj

    def _deleted(self, resource: Resource, key: Key, uid: str) -> None:
        """A deletion was accepted; a subclass may note it."""

    def _count(self, verb: str, resource: Resource, outcome: str, seconds: float) -> None:
        """A call has ended; a subclass may keep metrics."""
