"""The clusters behind a front: connections to their gateways, and requests as those want them.

Compiled (hatch_build.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from fulcrum.api.front import FrontCluster
from fulcrum.gateway.api_keys import AUTHORIZATION, X_API_KEY
from fulcrum.gateway.front.asked import CONVERSATION_HEADER
from fulcrum.gateway.http.connection_pool import ConnectionPool
from fulcrum.gateway.http.response_budget import ResponseBudget

KEY_HEADERS: Final = (AUTHORIZATION, X_API_KEY)
_PASSED: Final = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "traceparent", "tracestate", "anthropic-version")
"""Headers of a client that every gateway is sent, beside those that its cluster reads."""


def _is_line(value: str) -> bool:
    """Whether a header's value stays within its line; a parser that joins folded lines could let another one in."""
    return "\n" not in value and "\r" not in value and "\0" not in value


class Cluster:
    """One cluster's gateway."""

    __slots__ = ("_head", "_headers", "heard_at", "in_flight", "known", "line", "model", "pool", "silent")

    def __init__(self, known: FrontCluster, response_budget: ResponseBudget) -> None:
        self.known = known
        self.model = msgspec.json.encode(known.served_name)
        """What its gateway takes as `model`, as JSON."""
        self.line = b"x-fulcrum-cluster: %b\r\n" % known.name.encode()
        """Header line that tells clients which cluster answers."""
        self.pool = ConnectionPool(known.host, known.port, response_budget, still=self._is_still)
        self.heard_at = 0.0
        """Loop time when it last answered anything."""
        self.in_flight = 0
        """Requests that it has not answered to their end."""
        self.silent = False
        """It was given up on, and has answered nothing since."""
        self._headers = (*_PASSED, *(name for name in known.headers if name not in _PASSED))
        address = f"[{known.host}]:{known.port}" if ":" in known.host else f"{known.host}:{known.port}"
        self._head = f" HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nx-request-id: ".encode("ascii")

    def _is_still(self, _since: float, limit_seconds: float, now: float) -> bool:
        return now - self.heard_at > limit_seconds

    def request(
        self, path: str, request_id: bytes, headers: Mapping[str, str], body: bytes | bytearray, *, keys: bool
    ) -> bytes:
        """A client's request as its gateway is sent it; with `keys`, its API key, too."""
        lines = b""
        if headers:
            names = (*self._headers, *KEY_HEADERS) if keys else self._headers
            lines = "".join(
                [f"\r\n{name}: {headers[name]}" for name in names if name in headers and _is_line(headers[name])]
            ).encode("latin-1")
        return b"".join(
            (
                b"POST ", path.encode("ascii"), self._head, request_id, lines,
                b"\r\ncontent-length: ", str(len(body)).encode(), b"\r\n\r\n", body,
            )
        )  # fmt: skip


class Clusters:
    """All of them, by name."""

    def __init__(self, response_budget: ResponseBudget) -> None:
        self._response_budget = response_budget
        self._clusters: dict[str, Cluster] = {}
        self._leaving: list[Cluster] = []
        """Not sent anything new; some have requests under way."""
        self.kept_headers = self._kept()

    def change(self, known: Iterable[FrontCluster]) -> bool:
        """These are the clusters from now on; true: other headers are read. Requests under way go on."""
        wanted = {cluster.name: cluster for cluster in known}
        for name, cluster in list(self._clusters.items()):
            if wanted.get(name) != cluster.known:
                del self._clusters[name]
                cluster.pool.close()
                self._leaving.append(cluster)
        for name, each in wanted.items():
            if name not in self._clusters:
                self._clusters[name] = Cluster(each, self._response_budget)
        before, self.kept_headers = self.kept_headers, self._kept()
        return before != self.kept_headers

    def get(self, name: str) -> Cluster | None:
        """One of them; None: it is gone."""
        return self._clusters.get(name)

    def __iter__(self) -> Iterator[Cluster]:
        """Those that get requests."""
        return iter(self._clusters.values())

    def sweep(self, now: float) -> None:
        """Close what is idle, fail what is late."""
        for cluster in (*self._clusters.values(), *self._leaving):
            cluster.pool.sweep(now)
        self._leaving = [cluster for cluster in self._leaving if cluster.pool.open_connections]

    def close(self) -> None:
        """Close all idle connections."""
        for cluster in self._clusters.values():
            cluster.pool.close()

    def _kept(self) -> frozenset[bytes]:
        names = {*_PASSED, *KEY_HEADERS, CONVERSATION_HEADER}
        for cluster in self._clusters.values():
            names.update(cluster.known.headers)
        return frozenset(name.encode() for name in names)
