"""Gateways of one cluster tell each other which prompt prefixes they sent to which worker.

Keys of prefixes are hashes under a seed that only holders of the cluster's token can make; no text is in a message.
All of it can be lost: a gateway that does not answer in time learns what it missed when it is sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from fulcrum.api.internal_token import derived_number
from fulcrum.api.names import PORT_GATEWAY_INSIDE
from fulcrum.gateway.http.connection_pool import ConnectionPool
from fulcrum.gateway.http.response_budget import ResponseBudget
from fulcrum.gateway.http.upstream_answer import UpstreamError
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.routing import ClusterView, SentBatch, learn_batch, take_batch

SENT_PATH: Final = "/sent-prefixes"
_PERIOD_SECONDS: Final = 0.25
"""How long a gateway gathers before it tells the others: each message costs some 0.1 ms of CPU."""
_TIMEOUT_SECONDS: Final = 1.0
_NO_CONTENT: Final = 204
_BAD_REQUEST: Final = 400
_decoder: Final = msgspec.msgpack.Decoder(SentBatch)
_encoder: Final = msgspec.msgpack.Encoder()


def prefix_seed(token: str | None) -> int | None:
    """Seed of the prefix keys of a cluster's gateways; None without a token: nothing can be shared."""
    return None if token is None else derived_number(token, "fulcrum prefix keys")


class PrefixSharing:
    """Tells the other gateways, and learns from them."""

    def __init__(
        self, cluster: ClusterView, metrics: Metrics, response_budget: ResponseBudget, *, token: str | None
    ) -> None:
        """Without `token` nothing is shared."""
        self._cluster = cluster
        self._metrics = metrics
        self._response_budget = response_budget
        self._token = token
        self._pools: dict[str, ConnectionPool] = {}
        self._sending: dict[ConnectionPool, asyncio.Task[None]] = {}
        """Messages under way: one to each gateway at most."""

    def meet(self, hosts: frozenset[str]) -> None:
        """The other ready gateways are at these addresses."""
        if self._token is None or hosts == self._pools.keys():
            return
        came = hosts - self._pools.keys()
        for host in self._pools.keys() - hosts:
            self._pools.pop(host).close()
        for host in came:
            self._pools[host] = ConnectionPool(host, PORT_GATEWAY_INSIDE, self._response_budget, self._token)
        if came or not hosts:
            self._cluster.affinity.share(others=bool(hosts))

    async def run(self) -> None:
        """Tell the others now and then, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            self._tell()
            now = asyncio.get_running_loop().time()
            for pool in self._pools.values():
                pool.sweep(now)

    def learn(self, body: bytes) -> int:
        """Take in a message of another gateway; returns the status of the answer."""
        try:
            batch = _decoder.decode(body)
        except msgspec.DecodeError:
            self._metrics.prefix_batches["unreadable"] += 1
            return _BAD_REQUEST
        learn_batch(self._cluster, batch)
        self._metrics.prefix_batches["learned"] += 1
        return _NO_CONTENT

    def close(self) -> None:
        """Send no more."""
        for task in list(self._sending.values()):
            task.cancel()
        for pool in self._pools.values():
            pool.close()

    def _tell(self) -> None:
        batch = take_batch(self._cluster)
        if batch is None:
            return
        body = _encoder.encode(batch)
        for pool in self._pools.values():
            if pool in self._sending:
                self._metrics.prefix_batches["skipped"] += 1
                self._cluster.affinity.share(others=True)
            else:
                self._sending[pool] = asyncio.create_task(self._send(pool, body))

    async def _send(self, pool: ConnectionPool, body: bytes) -> None:
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_SECONDS
        outcome = "failed"
        try:
            async with asyncio.timeout_at(deadline):
                answer = await pool.exchange(pool.request(SENT_PATH, b"gateway", body), sink=None, deadline=deadline)
            outcome = "told" if answer.status == _NO_CONTENT else "refused"
        except (UpstreamError, TimeoutError):
            pass
        finally:
            del self._sending[pool]
        self._metrics.prefix_batches[outcome] += 1
        if outcome != "told":
            self._cluster.affinity.share(others=bool(self._pools))
