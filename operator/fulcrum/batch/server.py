"""Files and batches over HTTP, for the gateways of the cluster: they have checked the client's key and say its name."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from fulcrum.api.batch import KEY_HEADER, BatchConfig
from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import is_authorized
from fulcrum.batch.creation import new_batch
from fulcrum.batch.objects import Status, StoredBatch, StoredFile
from fulcrum.batch.scheduler import Scheduler
from fulcrum.batch.store import Store
from fulcrum.batch.uploads import Uploads
from fulcrum.gateway.api_formats.error_object import error_object
from fulcrum.gateway.errors import RequestError, bad_request
from fulcrum.gateway.unhandled import describe

logger = logging.getLogger(__name__)

_MOST_BODY_BYTES: Final = 64 * 1024
"""Of a request that is no upload."""
_MOST_FILES_LISTED: Final = 10_000
_MOST_BATCHES_LISTED: Final = 100
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Listed = TypeVar("Listed", StoredFile, StoredBatch)


class Api:
    """What is answered at each path."""

    def __init__(self, config: BatchConfig, store: Store, scheduler: Scheduler, *, token: str | None) -> None:
        """`token`: that gateways have to know; None: whoever can connect may ask."""
        self._config = config
        self._store = store
        self._scheduler = scheduler
        self._token = token
        self._uploads = Uploads(store, config.limits)

    def application(self) -> web.Application:
        """To be run."""
        application = web.Application(middlewares=[self._guard], client_max_size=_MOST_BODY_BYTES)
        application.add_routes(
            [
                web.get("/health", _healthy),
                web.get("/ready", _healthy),
                web.get("/progress", self._progress),
                web.post("/v1/files", self._upload),
                web.get("/v1/files", self._list_files),
                web.get("/v1/files/{id}", self._get_file),
                web.get("/v1/files/{id}/content", self._content),
                web.delete("/v1/files/{id}", self._delete_file),
                web.post("/v1/batches", self._create),
                web.get("/v1/batches", self._list_batches),
                web.get("/v1/batches/{id}", self._get_batch),
                web.post("/v1/batches/{id}/cancel", self._cancel),
            ]
        )
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Let in who knows the token, and write errors as OpenAI does."""
        try:
            if request.path.startswith("/v1/") and self._token is not None:
                self._check_token(request, self._token)
            response = await handler(request)
        except RequestError as error:
            response = _error(error)
        except web.HTTPException as error:
            status, allow = HTTPStatus(error.status), error.headers.get("Allow")
            response = _error(
                RequestError(status, f"{status.phrase}: {request.method} {request.path[:100]}", allow=allow)
            )
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            logger.error("directory_failed path=%s error=%s", request.path, error.strerror)  # noqa: TRY400
            if error.errno in _NO_ROOM:
                said = "The claim of spec.batch has no room left: delete files, or ask for a larger one."
                response = _error(RequestError(HTTPStatus.INSUFFICIENT_STORAGE, said, code="no_room"))
            else:
                response = _error(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The directory of files failed."))
        except Exception as crash:  # noqa: BLE001  the edge of one request: the others go on
            logger.error("request_crashed path=%s error=%s", request.path, describe(crash))  # noqa: TRY400
            response = _error(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The batch process failed."))
        if not response.prepared and (request_id := request.headers.get("x-request-id")):
            response.headers["x-request-id"] = request_id
        return response

    def _check_token(self, request: web.Request, token: str) -> None:
        if not is_authorized(request.headers.get(AUTHORIZATION), token):
            raise RequestError(HTTPStatus.UNAUTHORIZED, "Ask the gateway of the cluster.", code="invalid_token")

    async def _progress(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._scheduler.progress()), content_type="application/json")

    async def _upload(self, request: web.Request) -> web.Response:
        return _json((await self._uploads.take(request, _owner(request))).shown())

    async def _list_files(self, request: web.Request) -> web.Response:
        purpose = request.query.get("purpose")
        own = [file for file in self._files(request) if purpose is None or file.purpose == purpose]
        return _page(request, own, usual=_MOST_FILES_LISTED, most=_MOST_FILES_LISTED)

    async def _get_file(self, request: web.Request) -> web.Response:
        return _json(self._file(request).shown())

    async def _content(self, request: web.Request) -> web.StreamResponse:
        content = self._store.content(self._file(request).id)
        return web.FileResponse(content, headers={"Content-Type": "application/octet-stream"})

    async def _delete_file(self, request: web.Request) -> web.Response:
        file = self._file(request)
        using = next(
            (each.id for each in self._store.batches.values() if each.input_file_id == file.id and not each.ended), None
        )
        if using is not None:
            raise bad_request(f"The batch `{using}` reads this file: cancel it first.", param="id", code="file_in_use")
        await self._store.delete_file(file.id)
        return _json({"id": file.id, "object": "file", "deleted": True})

    async def _create(self, request: web.Request) -> web.Response:
        batch = new_batch(
            await request.read(),
            _owner(request),
            store=self._store,
            task=self._config.task,
            limits=self._config.limits,
            now=time.time(),
        )
        await self._store.add_batch(batch)
        self._scheduler.wake()
        logger.info("batch_created id=%s key=%s endpoint=%s", batch.id, batch.owner or "-", batch.endpoint)
        return _json(batch.shown())

    async def _list_batches(self, request: web.Request) -> web.Response:
        owner = _owner(request)
        own = [batch for batch in self._store.batches.values() if batch.owner == owner]
        return _page(request, own, usual=20, most=_MOST_BATCHES_LISTED)

    async def _get_batch(self, request: web.Request) -> web.Response:
        return _json(self._batch(request).shown())

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = await self._scheduler.cancel(self._batch(request).id)
        if batch.status not in (Status.CANCELLING, Status.CANCELLED):
            raise bad_request(f"A batch that is {batch.status.value} cannot be cancelled.", code="batch_ended")
        return _json(batch.shown())

    def _files(self, request: web.Request) -> list[StoredFile]:
        """Those of the key that have not expired."""
        owner, now = _owner(request), time.time()
        return [file for file in self._store.files.values() if file.owner == owner and file.expires_at > now]

    def _file(self, request: web.Request) -> StoredFile:
        file_id = request.match_info["id"]
        file = self._store.files.get(file_id)
        if file is None or file.owner != _owner(request) or file.expires_at <= time.time():
            raise _missing("file", file_id)
        return file

    def _batch(self, request: web.Request) -> StoredBatch:
        batch_id = request.match_info["id"]
        batch = self._store.batches.get(batch_id)
        if batch is None or batch.owner != _owner(request):
            raise _missing("batch", batch_id)
        return batch


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _owner(request: web.Request) -> str:
    return request.headers.get(KEY_HEADER, "")


def _missing(kind: str, wanted: str) -> RequestError:
    """Also for what another key has: this one is not told that it exists."""
    return RequestError(HTTPStatus.NOT_FOUND, f"There is no {kind} `{wanted[:100]}`.", param="id", code="not_found")


def _page(request: web.Request, own: Sequence[Listed], *, usual: int, most: int) -> web.Response:
    """One page of a list, the newest first unless `order` is `asc`."""
    query = request.query
    descending = query.get("order", "desc") == "desc"
    if query.get("order", "desc") not in ("asc", "desc"):
        raise bad_request("`order` must be `asc` or `desc`.", param="order")
    limit = query.get("limit", str(usual))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 6 and 1 <= int(limit) <= most):
        raise bad_request(f"`limit` must be a number of 1 to {most}.", param="limit")
    ordered = sorted(own, key=lambda each: (each.created_at, each.id), reverse=descending)
    after = query.get("after")
    if after is not None:
        place = next((index for index, each in enumerate(ordered) if each.id == after), None)
        if place is None:
            raise bad_request(f"`after` names `{after[:100]}`, which is not there.", param="after")
        ordered = ordered[place + 1 :]
    shown = ordered[: int(limit)]
    return _json(
        {
            "object": "list",
            "data": [each.shown() for each in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(ordered) > len(shown),
        }
    )


def _json(answer: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _error(error: RequestError) -> web.Response:
    lines = (line.partition(b": ") for line in error.headers().split(b"\r\n") if line)
    headers = {name.decode(): value.decode() for name, _, value in lines}
    return web.Response(
        status=error.status.value,
        body=error_object(error, in_stream=False),
        content_type="application/json",
        headers=headers,
    )
