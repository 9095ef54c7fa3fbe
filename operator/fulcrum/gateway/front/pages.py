"""What a front answers by itself: the list of models, health, and what is at no path."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from fulcrum.gateway.errors import RequestError, model_not_found
from fulcrum.gateway.front.models import Models
from fulcrum.gateway.http.cors import Cors
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response

POST_PATHS: Final = frozenset(
    (
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
        "/v1/embeddings", "/v1/score", "/v1/rerank", "/tokenize", "/detokenize",
    )
)  # fmt: skip
"""What is passed on; a cluster's gateway answers 404 at what it does not serve."""
_MODELS: Final = "/v1/models"
_GET_PATHS: Final = (_MODELS, "/health", "/ready")
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"


class Pages:
    """Answers what needs no cluster."""

    def __init__(self, models: Models, cors: Cors, not_ready: Callable[[], str | None]) -> None:
        self._models = models
        self._cors = cors
        self._not_ready = not_ready
        self._created = int(time.time())

    def answer(self, request: Request, response: Response) -> bool:
        """Answer a request; False: it needs a cluster."""
        path, method = request.path, request.method
        if path in POST_PATHS and method == b"POST":
            media_type = request.content_type.partition(b";")[0].strip().lower()
            if media_type in (b"application/json", b""):
                return False
            response.fail(RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The Content-Type must be application/json."))
        elif method == b"OPTIONS" and (allowed := self._cors.preflight(request.headers)) is not None:
            response.send(HTTPStatus.OK, _TEXT, b"", allowed)
        elif method in (b"GET", b"HEAD") and (path in _GET_PATHS or path.startswith(_MODELS + "/")):
            self._get(path, request, response)
        elif path in POST_PATHS or path in _GET_PATHS or path.startswith(_MODELS + "/"):
            allow = "POST, OPTIONS" if path in POST_PATHS else "GET, HEAD, OPTIONS"
            response.fail(RequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"Allowed here: {allow}.", allow=allow))
        else:
            response.fail(RequestError(HTTPStatus.NOT_FOUND, "There is nothing at this path.", code="not_found"))
        return True

    def _get(self, path: str, request: Request, response: Response) -> None:
        if path == "/health":
            response.send(HTTPStatus.OK, _TEXT, b"ok\n")
        elif path == "/ready":
            why = self._not_ready()
            status = HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE
            response.send(status, _TEXT, (why or "ready").encode() + b"\n")
        else:
            self._list(path.removeprefix(_MODELS).removeprefix("/"), request, response)

    def _list(self, wanted: str, request: Request, response: Response) -> None:
        """Models that the client may ask for, or the one that is `wanted`."""
        names = self._models.names_for(request.headers)
        if not wanted:
            cards = [self._card(name) for name in names]
            response.send(HTTPStatus.OK, _JSON, msgspec.json.encode({"object": "list", "data": cards}))
        elif wanted in names:
            response.send(HTTPStatus.OK, _JSON, msgspec.json.encode(self._card(wanted)))
        else:
            response.fail(model_not_found(wanted))

    def _card(self, name: str) -> dict[str, object]:
        root = self._models.find(name).route.name
        return {"id": name, "object": "model", "created": self._created, "owned_by": "fulcrum", "root": root}
