"""The session that the Prometheus client works with: it trusts, reads and waits no more than was agreed on.

Import it in a thread and late: the client brings modules along that take a second.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypedDict, TypeVar

import msgspec
import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from fulcrum.telemetry.prometheus_access import PrometheusAccess, tls_context
from fulcrum.telemetry.prometheus_calls import Call
from fulcrum.telemetry.prometheus_queries import Queries, UnknownError
from fulcrum.telemetry.reading import HEADERS

ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Most of an answer: 5,000 points of a dozen gateways. Decoded it takes up to 20 times as much."""
CHUNK_BYTES: Final = 64 * 1024
"""Read at a time; the time that is left is looked at in between."""

Answer = TypeVar("Answer")


class _Row(TypedDict, total=False):
    metric: dict[str, str]
    value: tuple[float, str]
    values: list[tuple[float, str]]


class _Data(TypedDict):
    result: list[_Row]


class _Body(TypedDict):
    data: _Data


class _Answer(requests.Response):
    """Decoded into what an answer of Prometheus is made of: anything else is refused before it takes memory."""

    def json(self, **options: Any) -> _Body:
        return msgspec.json.decode(self.content, type=_Body)


def ask_prometheus(url: str, access: PrometheusAccess, call: Call, ask: Callable[[Queries], Answer]) -> Answer:
    """Ask one server, within a call. Errors: UnknownError, and TimeoutError when the call's time is over."""
    if not access.usable:
        # Errors of the libraries name a header with its value.
        raise UnknownError("the key token of metrics.prometheus.secretName is no bearer token; write one line of ASCII")
    try:
        with _Session(call, access.ca_pem) as session:
            return ask(Queries(PrometheusConnect(url=url, headers=access.headers, session=session)))
    except requests.Timeout as error:
        raise TimeoutError from error
    except requests.exceptions.SSLError as error:
        why = "its certificate is not trusted; put its CA into the key ca.crt of metrics.prometheus.secretName"
        raise UnknownError(why) from error
    except ssl.SSLError as error:
        why = "the key ca.crt of metrics.prometheus.secretName holds no certificate in PEM form"
        raise UnknownError(why) from error
    except (requests.RequestException, HTTPError) as error:
        why = f"it cannot be reached ({_said(error)}); look at metrics.prometheus.url and whether it runs"
        raise UnknownError(why) from error
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"it does not answer like Prometheus ({type(error).__name__}); look at metrics.prometheus.url"
        raise UnknownError(why) from error


class _Session(requests.Session):
    """Every request goes through one adapter, and takes nothing from our environment (proxies, .netrc)."""

    def __init__(self, call: Call, ca_pem: str | None) -> None:
        super().__init__()
        self.trust_env = False
        self.headers.update(HEADERS)
        self._adapter = _Adapter(call, ca_pem)

    def get_adapter(self, url: str | bytes) -> _Adapter:
        return self._adapter

    def close(self) -> None:
        super().close()
        self._adapter.close()


class _Adapter(HTTPAdapter):
    """Follows and retries nothing; reads an answer at once, up to the limit, within the call's time."""

    def __init__(self, call: Call, ca_pem: str | None) -> None:
        self._call = call
        self._ca_pem = ca_pem
        super().__init__()  # it tries nothing again by itself: the next tick does

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Trust one CA, from memory: the operator's file system is read-only."""
        super().init_poolmanager(*args, ssl_context=tls_context(self._ca_pem), **options)
        self.poolmanager.pool_classes_by_scheme = _pools(self._call)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """The context says what is trusted."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> _Answer:
        """Errors: UnknownError for an answer that is none; TimeoutError, and those of requests and urllib3."""
        response = super().send(request, stream=True, timeout=self._call.left_seconds())
        try:
            body = self._read(response)
        finally:
            response.close()
        answer = _Answer()
        answer.status_code, answer.headers, answer.request = response.status_code, response.headers, request
        answer.raw = io.BytesIO(body)
        return answer

    def _read(self, response: requests.Response) -> bytes:
        if 300 <= response.status_code < 400:
            why = "it redirects, which is not followed; write the final address into metrics.prometheus.url"
            raise UnknownError(why)
        if response.status_code != HTTPStatus.OK:
            raise UnknownError(
                f"it refused a query (HTTP {response.status_code}); "
                "look at its log and at metrics.prometheus.secretName"
            )
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise UnknownError("its answer is compressed, which was not asked for; look at metrics.prometheus.url")
        body = bytearray()
        while chunk := response.raw.read(CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > ANSWER_BYTES:
                raise UnknownError(f"its answer is larger than {ANSWER_BYTES} bytes; look at metrics.prometheus.url")
            self._call.left_seconds()
        return bytes(body)


def _pools(call: Call) -> dict[str, type[HTTPConnectionPool]]:
    """Pools whose connections belong to the call, so that its end is theirs."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(call, self)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(call, self)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def _connect(call: Call, connection: HTTPConnection) -> socket.socket:
    host = connection.host.strip("[]")
    try:
        return call.connect(host, connection.port or connection.default_port)
    except socket.gaierror as error:
        raise NameResolutionError(host, connection, error) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, str(error)) from error  # else the client takes it for a lost connection
    except OSError as error:
        raise NewConnectionError(connection, str(error)) from error


def _said(error: BaseException) -> str:
    """The innermost cause of a failure to connect, which is the part that says something."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
