"""Answers at the addresses of a fleet's Pods: load reports of workers, metrics and rings of gateways.

One event loop listens at the two ports of all addresses of 127.0.0.0/8; which Pod is meant, the address says.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec
from _loopback.fleet_recordings import SPEED, Counted, Recordings

from fulcrum.api.gateway import DemandReport, LoadsReport, PairsReport
from fulcrum.api.names import (
    COMPONENT_GATEWAY,
    HEADER_POD,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_ROLE,
    PORT_AGENT,
    PORT_GATEWAY_INSIDE,
    Role,
    role_epoch,
)
from fulcrum.api.record import CONTENT_TYPE, PATH
from fulcrum.api.worker import LoadReport
from fulcrum.gateway.metrics.counts import CONTENT_TYPE as METRICS_TYPE
from fulcrum.kube import Json

_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_RUNNING: Final = 4
"""Requests that each worker says that it has; a draining one has none."""


@dataclass(slots=True)
class _Cluster:
    counted: Counted
    roles: dict[str, Role] = field(default_factory=dict)
    """By name of the Pod."""
    reports: dict[str, LoadReport] = field(default_factory=dict)
    """By name of the Pod."""
    told: bytes | None = None
    """A gateway's whole answer to `GET /loads`; None: it is to be made anew."""


class Fleet:
    """What the Pods of all clusters answer. Troubled clusters are told by their names.

    A troubled cluster answers as the simulation of the layout that it has now, from the first request in its ring on,
    mixed workers counted half: a flip is seen at once in all of the ring.
    """

    def __init__(self, recordings: Recordings, *, troubled: frozenset[str]) -> None:
        self._recordings, self._troubled = recordings, troubled
        self._began = time.monotonic()
        self._steady = Counted(recordings.steady)
        self._clusters: dict[str, _Cluster] = {}
        self._workers: dict[str, bytes] = {}
        """By address: the whole answer to `GET /load`."""
        self._gateways: dict[str, tuple[_Cluster, int]] = {}
        """By address: its cluster, and which of the gateways it is."""
        self.asked: Counter[str] = Counter()
        """Requests so far, by path; those of troubled clusters' metrics once more as `troubled`."""
        self.flips = 0

    def pod_changed(self, old: Json | None, new: Json | None) -> None:
        """Take in what a watch of Pods saw."""
        pod = cast("Json", new or old)
        address = (pod.get("status") or {}).get("podIP")
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
        cluster = self._cluster(labels.get(LABEL_CLUSTER, ""))
        if labels.get(LABEL_COMPONENT) == COMPONENT_GATEWAY:
            if address is not None:
                self._gateways[address] = (cluster, int(name.rpartition("-")[2]))
            return
        cluster.told = None
        if new is None:
            cluster.roles.pop(name, None)
            cluster.reports.pop(name, None)
            self._workers.pop(address or "", None)
            return
        role = Role(labels.get(LABEL_ROLE, Role.DRAINING))
        self.flips += cluster.roles.get(name, role) is not role
        cluster.roles[name] = role
        if cluster.counted is not self._steady:
            prefill = Counter(cluster.roles.values())
            cluster.counted.recording = self._recordings.troubled(prefill[Role.PREFILL] + prefill[Role.MIXED] // 2)
        if address is not None:
            report = cluster.reports[name] = _report(role, role_epoch(pod["metadata"].get("annotations")))
            self._workers[address] = _answer(b"application/json", msgspec.json.encode(report), pod=name)

    def _cluster(self, name: str) -> _Cluster:
        found = self._clusters.get(name)
        if found is None:
            counted = Counted(self._recordings.troubled(5)) if name in self._troubled else self._steady
            found = self._clusters[name] = _Cluster(counted)
        return found

    def answer(self, address: str, port: int, target: str) -> bytes:
        """Return the whole HTTP response of the Pod at an address; a gateway's ends its connection."""
        path = target.partition("?")[0]
        self.asked[path] += 1
        if port == PORT_AGENT:
            return self._workers.get(address, _NOT_FOUND) if path == "/load" else _OK
        found = self._gateway_answer(*self._gateways[address], path) if address in self._gateways else _NOT_FOUND
        return found.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)

    def _gateway_answer(self, cluster: _Cluster, number: int, path: str) -> bytes:
        seconds = time.monotonic() - self._began
        if path == "/metrics":
            self.asked["troubled"] += cluster.counted is not self._steady
            return _answer(METRICS_TYPE, cluster.counted.page(seconds))
        if path == PATH:
            recording = cluster.counted.recording
            return _answer(CONTENT_TYPE.encode(), recording.ring_page(int(recording.at(seconds)), number))
        if path == "/loads":
            if cluster.told is None:
                cluster.told = _json(LoadsReport(age_seconds=0.5, loads=cluster.reports))
            return cluster.told
        return _FIXED.get(path, _NOT_FOUND)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer until the context ends."""
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            for port in (PORT_AGENT, PORT_GATEWAY_INSIDE):
                server = await loop.create_server(lambda: _Connection(self), sock=_everywhere_here(port), backlog=4096)
                stack.callback(server.close)
            yield


def _everywhere_here(port: int) -> socket.socket:
    """Return a socket that is bound to all of 127/8, and to nothing else."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    found.bind(("", port))
    return found


class _Connection(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._unread = fleet, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._address, self._port = transport.get_extra_info("sockname")[:2]

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(_HEAD_END)) >= 0:
            head = self._unread[:end]
            length = _LENGTH.search(head)
            whole = end + len(_HEAD_END) + (int(length[1]) if length else 0)
            if len(self._unread) < whole:
                return
            self._unread = self._unread[whole:]
            self._transport.write(self._fleet.answer(self._address, self._port, head.split(b" ", 2)[1].decode()))
            if self._port == PORT_GATEWAY_INSIDE:
                self._transport.close()


def _report(role: Role, epoch: int) -> LoadReport:
    drains = role is Role.DRAINING
    return LoadReport(
        role=role,
        role_epoch=epoch,
        ready=True,
        draining=drains,
        running=0 if drains else _RUNNING,
        waiting=0,
        queued_prompt_tokens=0,
        kv_usage=0.0 if drains else 0.2,
        kv_held_for_peers=0.0,
        kv_capacity_tokens=SPEED.kv_capacity_tokens,
        speed=SPEED.coefficients,
        max_batch=SPEED.max_batch,
        max_batched_tokens=SPEED.max_batched_tokens,
    )


def _answer(content_type: bytes, body: bytes, *, status: bytes = b"200 OK", pod: str = "") -> bytes:
    named = f"{HEADER_POD}: {pod}\r\n".encode() if pod else b""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n" % (status, content_type, named, len(body))
    return head + body


def _json(value: Any) -> bytes:
    return _answer(b"application/json", msgspec.json.encode(value))


_OK: Final = _json({})
_NOT_FOUND: Final = _answer(b"text/plain", b"", status=b"404 Not Found")
_FIXED: Final = {"/kv-pairs": _json(PairsReport()), "/demand": _json(DemandReport(held=0, up_seconds=3600.0))}
