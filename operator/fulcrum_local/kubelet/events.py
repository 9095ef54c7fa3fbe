"""Kubernetes Events about Pods: what `kubectl describe pod` shows at its end. Best effort, never in the way."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fulcrum.kube import MERGE, Api, ApiFailure

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_REPEAT_SECONDS: Final = 30.0
"""The same event again is counted on the first one, at most this often."""
_REMEMBERED: Final = 1024


class Report(Protocol):
    """Tells the user about something that happened to a container."""

    def __call__(self, reason: str, message: str, *, warning: bool = False) -> None: ...


@dataclass(slots=True)
class _Seen:
    name: str
    count: int
    written_at: float


class Recorder:
    """Writes events from one queue, so that no container waits for the API server."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._queue: asyncio.Queue[tuple[Json, str, str, str]] = asyncio.Queue(maxsize=256)
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def record(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Note an event; dropped when too many wait."""
        if not self._queue.full():
            self._queue.put_nowait((pod, reason, message, "Warning" if warning else "Normal"))

    async def run(self) -> None:
        """Write what was noted, for ever."""
        while True:
            pod, reason, message, kind = await self._queue.get()
            try:
                await self._write(pod, reason, message, kind)
            except ApiFailure as error:
                logger.debug("event_not_written reason=%s error=%s", reason, error)

    async def _write(self, pod: Json, reason: str, message: str, kind: str) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = (metadata["uid"], reason, message)
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
            if time.monotonic() - seen.written_at >= _REPEAT_SECONDS:
                seen.written_at = time.monotonic()
                change = {"count": seen.count, "lastTimestamp": now}
                await self._api.patch(f"{path}/{seen.name}", change, content_type=MERGE)
            return
        if len(self._seen) >= _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        name = f"{metadata['name']}.{time.time_ns():x}"
        self._seen[key] = _Seen(name, 1, time.monotonic())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message[:1024],
            "type": kind,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node_name,
        }
        await self._api.create(path, event)
