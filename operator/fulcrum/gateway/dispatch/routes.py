"""What is answered without a worker: models, health, the API's description, and what cannot be served.

Compiled (hatch_build.py): it sees every request first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from fulcrum.api.batch import is_batch_path
from fulcrum.api.gateway import GatewayConfig
from fulcrum.gateway.api_formats import openapi
from fulcrum.gateway.api_formats.inference_request import POST_PATHS, RESPONSES_PATH, ServedModel
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.errors import RequestError, other_task
from fulcrum.gateway.http.cors import Cors
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.workers.adapters import Adapters

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_MODELS: Final = "/v1/models"
_NO_BATCHES: Final = (
    "This cluster keeps no files and runs no batches. To turn them on, set spec.batch.claim of the InferenceCluster "
    "to a PersistentVolumeClaim, and have a class of kind Batch in spec.admission.classes."
)
GET_PATHS: Final = (_MODELS, "/health", "/ready", openapi.PATH)


class Routes:
    """Answers what needs no worker."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        served: ServedModel,
        admission: AdmissionControl,
        adapters: Adapters,
        cors: Cors,
        not_ready: Callable[[], str | None],
        refused: Callable[[RequestError], None],
    ) -> None:
        """`not_ready`: why there should be no traffic; `refused`: counts an error."""
        self._config = config
        self._served = served
        self._paths = frozenset(served.paths)
        self._admission = admission
        self._adapters = adapters
        self._cors = cors
        self._not_ready = not_ready
        self._refused = refused
        self._created = int(time.time())

    def answer(self, request: Request, response: Response) -> bool:
        """Answer a request; False: it needs a worker."""
        path = request.path
        if path in self._paths and request.method == b"POST":
            media_type = request.content_type.partition(b";")[0].strip().lower()
            if media_type in (b"application/json", b""):
                return False
            self._fail(
                response, RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The Content-Type must be application/json.")
            )
            return True
        self._answer_other(path, request, response)
        return True

    def _answer_other(self, path: str, request: Request, response: Response) -> None:
        if request.method == b"OPTIONS" and (allowed := self._cors.preflight(request.headers)) is not None:
            response.send(HTTPStatus.OK, _TEXT, b"", allowed)  # a browser sends no key with it
            return
        if request.unauthorized is not None:
            self._fail(response, request.unauthorized)
            return
        one_model = path.startswith(_MODELS + "/")
        if request.method in (b"GET", b"HEAD") and (one_model or path in GET_PATHS):
            if one_model:
                self._model(path.removeprefix(_MODELS + "/"), response)
            else:
                response.send(*self._get(path))
        elif path in POST_PATHS and path not in self._paths and request.method == b"POST":
            makes, other = ("embeddings and scores", "Generate") if self._served.pools else ("text", "Pooling")
            self._fail(response, other_task(path, makes, other))
        elif path.startswith(RESPONSES_PATH + "/"):
            message = "Responses are not stored: send all of the conversation as `input` of a new one."
            self._fail(response, RequestError(HTTPStatus.NOT_FOUND, message, code="response_not_found"))
        elif is_batch_path(path):
            self._fail(response, RequestError(HTTPStatus.NOT_FOUND, _NO_BATCHES, code="batches_off"))
        elif not one_model and path not in GET_PATHS and path not in POST_PATHS:
            self._fail(response, RequestError(HTTPStatus.NOT_FOUND, "There is nothing at this path.", code="not_found"))
        else:
            allow = "POST, OPTIONS" if path in POST_PATHS else "GET, HEAD, OPTIONS"
            if request.method == b"OPTIONS":
                response.send(HTTPStatus.OK, _TEXT, b"", b"allow: %b\r\n" % allow.encode())
            else:
                self._fail(
                    response, RequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"Allowed here: {allow}.", allow=allow)
                )

    def _fail(self, response: Response, error: RequestError) -> None:
        self._refused(error)
        response.fail(error)

    def _get(self, path: str) -> tuple[int, bytes, bytes]:
        if path == "/health":
            return HTTPStatus.OK, _TEXT, b"ok\n"
        if path == openapi.PATH:
            described = openapi.document(
                guarded=self._admission.keys is not None,
                max_body_bytes=self._config.limits.max_body_bytes,
                batches=self._config.batch is not None,
            )
            return HTTPStatus.OK, _JSON, msgspec.json.encode(described)
        if path == "/ready":
            why = self._not_ready()
            if why is None:
                return HTTPStatus.OK, _TEXT, b"ready\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, why.encode() + b"\n"
        return HTTPStatus.OK, _JSON, msgspec.json.encode({"object": "list", "data": self._cards()})

    def _model(self, name: str, response: Response) -> None:
        card = next((each for each in self._cards() if each["id"] == name), None)
        if card is not None:
            response.send(HTTPStatus.OK, _JSON, msgspec.json.encode(card))
        else:
            self._fail(
                response,
                RequestError(HTTPStatus.NOT_FOUND, "The model does not exist.", param="model", code="model_not_found"),
            )

    def _cards(self) -> list[dict[str, object]]:
        """The model and its adapters, as vLLM lists them."""
        config = self._config
        adapters = [self._card(each.name, each.source, config.served_name) for each in self._adapters.listed.values()]
        return [self._card(config.served_name, config.model, None), *adapters]

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "fulcrum",
            "root": root,
            "parent": parent,
            "max_model_len": self._config.max_model_len,
        }
