"""What a client's connection needs of the gateway."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from fulcrum.api.gateway import GatewayLimits
from fulcrum.gateway.api_keys import ApiKey
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.http.budget import Budget
from fulcrum.gateway.http.cors import Cors
from fulcrum.gateway.http.passage import Destination
from fulcrum.gateway.http.places import Connection, Places
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.response import ErrorForm, Response
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.slow_readers import SlowReaders


class Service(Protocol[Connection]):
    """Serves the requests of all connections."""

    limits: GatewayLimits
    cors: Cors
    kept_headers: frozenset[bytes]
    """Names, in lower case, of the headers that it reads."""
    places: Places[Connection]
    slow_readers: SlowReaders
    response_budget: ResponseBudget
    bodies: Budget[Connection]
    """What has arrived of requests, heads included, that are not complete or wait for their turn."""
    closing: bool
    """Connections end with the answer under way."""

    def authenticate(self, path: str, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request, by its head; None where none is needed. Raises RequestError."""

    def passes(self, path: str) -> bool:
        """Whether requests for a path are passed on to another server, their bodies unread."""

    def destination(self) -> Destination | None:
        """Where to; None: it is not there now."""

    def answer(self, request: Request, response: Response) -> bool:
        """Answer what needs no waiting; False when `serve` must."""

    def serve(self, request: Request, response: Response) -> Coroutine[Any, Any, None]:
        """Answer. Raises nothing; when cancelled, answers with `response.verdict` if there is one."""

    def error_form(self, path: str) -> ErrorForm:
        """How errors are written in answers to requests for `path`; empty: it is not known."""

    def refused(self, error: RequestError) -> None:
        """Note an answer to a request that could not be read."""
