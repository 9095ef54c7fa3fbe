"""The verbs on resources: each takes a `Call` and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

from fulcrum_local.apiserver import errors, patching
from fulcrum_local.apiserver.bodies import as_object
from fulcrum_local.apiserver.call import Call, answer
from fulcrum_local.apiserver.chaos import Chaos
from fulcrum_local.apiserver.conversion import served_form
from fulcrum_local.apiserver.deleting import Deleter, parse_delete_options
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.metrics import Metrics
from fulcrum_local.apiserver.presentation import encode, object_bytes, present_object, present_page
from fulcrum_local.apiserver.reading import list_page
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.watching import Watch, error_line
from fulcrum_local.apiserver.writing import Writer


class Resources:
    """Get, list, watch, create, update, patch and delete, for objects and their `status`."""

    def __init__(
        self, store: Store, writer: Writer, deleter: Deleter, metrics: Metrics, chaos: Chaos | None = None
    ) -> None:
        self._store, self._writer, self._deleter, self._metrics = store, writer, deleter, metrics
        self._chaos = chaos
        self._watches: set[Watch] = set()
        self._stopped = False
        self._answerers: Mapping[str, Callable[[Call], web.Response]] = {
            "get": self.get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def handle(self, call: Call) -> web.StreamResponse:
        """Answer a call for the resource itself or for its `status`."""
        if call.target.verb == "watch":
            return await self._watch(call)
        answerer = self._answerers.get(call.target.verb)
        if answerer is None:
            raise errors.method_not_allowed()
        return answerer(call)

    def end_watches(self, storage: str) -> None:
        """Let the watches of a resource finish cleanly."""
        for watch in self._watches:
            if watch.storage == storage:
                watch.end()

    def stop(self) -> None:
        """Let every watch finish cleanly, also those that are yet to come."""
        self._stopped = True
        for watch in self._watches:
            watch.end()

    def get(self, call: Call) -> web.Response:
        """One object."""
        target, kind = call.target, call.kind
        stored = self._store.get(kind.storage, target.namespace, target.name)
        if stored is None:
            raise errors.not_found(kind.group, kind.plural, target.name)
        form = call.form()
        if not form.kind:
            return answer(call, object_bytes(kind, stored))
        return answer(call, present_object(kind, served_form(kind, stored.obj), form))

    def _list(self, call: Call) -> web.Response:
        page = list_page(self._store, call.kind, call.target.namespace, call.query, call.target.name)
        return answer(call, present_page(call.kind, page, call.form()))

    async def _watch(self, call: Call) -> web.StreamResponse:
        target, kind = call.target, call.kind
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        form = call.form()
        try:
            watch = Watch(self._store, kind, target, call.query, form)
        except ApiError as error:
            if error.code != 410:
                raise
            # As a real server does: the watch begins, and its only event is the error.
            await response.prepare(call.request)
            await response.write(error_line(error))
            await response.write_eof()
            return response
        self._watches.add(watch)
        if self._stopped:
            watch.end()
        open_watches = self._metrics.watches.labels("WATCH", target.group, target.version, target.resource)
        open_watches.inc()
        fate = self._chaos.watch_fate() if self._chaos is not None else None
        doom = asyncio.get_running_loop().call_later(fate.lifetime_seconds, watch.end) if fate is not None else None
        try:
            await response.prepare(call.request)
            async for lines in watch.lines():
                if self._chaos is not None:
                    await asyncio.sleep(self._chaos.delay_seconds())
                await response.write(lines)
            if fate is not None and fate.broken and call.request.transport is not None:
                call.request.transport.abort()
                return response
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            watch.end()  # the client has gone; a watch is never answered twice
        finally:
            if doom is not None:
                doom.cancel()
            watch.close()
            self._watches.discard(watch)
            open_watches.dec()
        return response

    def _create(self, call: Call) -> web.Response:
        target, kind = call.target, call.kind
        if kind.namespaced and not target.namespace:
            raise errors.method_not_allowed()
        obj = self._writer.create(kind, target.namespace, as_object(call.body()), call.write_options())
        return answer(call, present_object(kind, obj, call.form()), 201)

    def _update(self, call: Call) -> web.Response:
        target, kind = call.target, call.kind
        body = as_object(call.body())
        if kind.custom is not None and not (body.get("metadata") or {}).get("resourceVersion"):
            causes = [errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")]
            raise errors.invalid(kind.group, kind.kind, target.name, causes)
        obj = self._writer.update(
            kind,
            target.namespace,
            target.name,
            lambda _live: body,
            call.write_options(),
            subresource=target.subresource,
        )
        return answer(call, present_object(kind, obj, call.form()))

    def _patch(self, call: Call) -> web.Response:
        obj, created = patching.patch(self._store, self._writer, call)
        return answer(call, present_object(call.kind, obj, call.form()), 201 if created else 200)

    def _delete(self, call: Call) -> web.Response:
        options = parse_delete_options(call.body(), call.query)
        target = call.target
        return answer(call, encode(self._deleter.delete(call.kind, target.namespace, target.name, options)))

    def _delete_collection(self, call: Call) -> web.Response:
        options = parse_delete_options(call.body(), call.query)
        kind = call.kind
        page = list_page(self._store, kind, call.target.namespace, call.query)
        self._deleter.delete_collection(kind, page.items, options)
        result: Json = {
            "kind": kind.list_kind,
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": [served_form(kind, stored.obj) for stored in page.items],
        }
        return answer(call, encode(result))
