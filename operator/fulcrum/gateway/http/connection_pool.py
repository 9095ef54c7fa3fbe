"""Keep-alive connections to one engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from math import inf
from typing import Final

from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import authorization
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.upstream import UpstreamConnection
from fulcrum.gateway.http.upstream_answer import Answer, Excuse, Failure, StreamSink, UpstreamError

# uvicorn, in front of vLLM, closes a connection that was idle for 5 s; being earlier avoids the race.
_IDLE_SECONDS: Final = 4.0
_CONNECT_TIMEOUT_SECONDS: Final = 2.0
_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    # A node that vanished acknowledges nothing; without this the kernel retries for a quarter of an hour.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
    # Else the kernel would hold megabytes of each stream whose client does not read.
    (socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024),
)


class ConnectionPool:
    """Connections to `host:port`, used last in, first out, so that surplus ones idle out."""

    def __init__(
        self,
        host: str,
        port: int,
        response_budget: ResponseBudget,
        token: str | None = None,
        *,
        headers: str = "",
        still: Callable[[float, float, float], bool] = lambda _since, _limit_seconds, _now: True,
    ) -> None:
        """`headers`: further lines of each request's head. `still`: whether the engine has computed nothing for so many
        seconds since a time, as of now (loop time).
        """
        self.host = host
        self.port = port
        self._response_budget = response_budget
        self._engine_is_still = still
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._closed = False
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        own = "" if token is None else f"{AUTHORIZATION.lower()}: {authorization(token)}\r\n"
        head = f" HTTP/1.1\r\nhost: {address}\r\n{own}{headers}content-type: application/json\r\nx-request-id: "
        self._fixed_head = head.encode("ascii")

    def request(self, path: str, request_id: bytes, body: bytes, headers: bytes = b"") -> bytes:
        """A POST with a JSON body; it has no header of the client's but its request id.

        Its Authorization is the cluster's own. `headers`: further lines of its head, each ended by CRLF.
        """
        length = str(len(body)).encode()
        return b"".join(
            (
                b"POST ",
                path.encode(),
                self._fixed_head,
                request_id,
                b"\r\n",
                headers,
                b"content-length: ",
                length,
                b"\r\n\r\n",
                body,
            )
        )

    def question(self, path: str) -> bytes:
        """A GET."""
        return b"".join(
            (
                b"GET ",
                path.encode(),
                self._fixed_head.replace(b"content-type: application/json\r\n", b""),
                b"gateway\r\n\r\n",
            )
        )

    async def exchange(
        self,
        request: bytes,
        *,
        sink: StreamSink | None,
        deadline: float,
        silence_seconds: float = inf,
        excuse: Excuse = Excuse.NEVER,
    ) -> Answer:
        """Send a request on an idle or a new connection. Raises UpstreamError; cancelling closes the connection.

        It fails at `deadline` (loop time), and before it (STALL) when nothing comes for `silence_seconds`, unless the
        engine computes meanwhile and `excuse` lets that count.
        """
        sent = False
        while True:
            reused = bool(self._idle)
            try:
                connection = self._idle.pop() if reused else await self._connect()
            except UpstreamError as error:
                if sent:  # it may have died of the request, so this is not one that it never saw
                    raise UpstreamError(Failure.RESET, str(error)) from error
                raise
            try:
                return await connection.exchange(request, sink, deadline, silence_seconds, excuse)
            except UpstreamError as error:
                # STALE: the engine closed it while it was idle, and has not seen the request.
                if not reused or error.failure is not Failure.STALE:
                    raise
                sent = True
            except asyncio.CancelledError:
                connection.abort()
                raise

    def sweep(self, now: float) -> None:
        """Close what was idle too long, fail what is past its deadline (loop time)."""
        while self._idle and now - self._idle[0].idle_since > _IDLE_SECONDS:
            self._idle.pop(0).abort()
        for connection in list(self._open):
            connection.check(now)

    def close(self) -> None:
        """Close idle connections now and busy ones when they are done."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(
                        loop,
                        released=self._release,
                        lost=self._forget,
                        still=self._still,
                        response_budget=self._response_budget,
                    ),
                    self.host,
                    self.port,
                )
            raw = transport.get_extra_info("socket")
            for level, option, value in _OPTIONS:
                raw.setsockopt(level, option, value)
        except (OSError, TimeoutError) as error:
            raise UpstreamError(Failure.CONNECT, f"cannot connect: {error!r}") from error
        self._open.add(connection)
        return connection

    def _still(self, connection: UpstreamConnection, since: float, limit_seconds: float, now: float) -> bool:
        if connection.first_byte_at == 0.0 and (
            connection.excuse is Excuse.NEVER or (connection.excuse is Excuse.IN_TURN and self._overtaken(connection))
        ):
            return True
        return self._engine_is_still(since, limit_seconds, now)

    def _overtaken(self, connection: UpstreamConnection) -> bool:
        """A later request was answered before it: the engine has lost it, or it waits for something else."""
        return any(other.answered and other.began_at > connection.began_at for other in self._open)

    def _release(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)

    def _forget(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
