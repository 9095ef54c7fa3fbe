"""Keeps the engine's LoRA adapters as they are wanted, while it serves. Level-triggered: what it has is asked of it.

An engine that starts again has none, and a call may be lost on its way; so vLLM's own list is compared with what is
wanted, again and again. One adapter that cannot be loaded is tried again later, and keeps no other from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from fulcrum.api.worker import AdapterReport, AdaptersConfig, AdapterSource, AdapterState
from fulcrum_worker.adapter_files import AdapterError, adapter_folder, check_files

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
"""Between two looks at the engine's list while nothing changes."""
_RETRY_SECONDS: Final = (5.0, 60.0)
"""First and longest pause before an adapter that failed is tried again."""
_LIST_SECONDS: Final = 5.0
_LOAD_SECONDS: Final = 120.0
"""Longest answer of the engine: it loads between two steps, from disk."""
_SHOWN: Final = 300
"""Most characters of what the engine says of a failure."""
_LISTED_BYTES: Final = 1 << 20
"""Most of the engine's list of models: each has 600 bytes."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    """None: it is the model itself."""


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Attempt(msgspec.Struct, frozen=True):
    """What came of loading an adapter."""

    message: str
    lasting: bool
    again_at: float
    pause_seconds: float


class AdapterKeeper:
    """The adapters of one engine."""

    def __init__(
        self,
        config: AdaptersConfig,
        session: aiohttp.ClientSession,
        engine_url: str,
        *,
        unload_after_seconds: float,
        serves: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unload_after_seconds`: how long requests of an adapter that is no longer wanted may still come, in their
        second leg or in mid-stream. `serves`: whether the engine answers."""
        self._max_rank = config.max_rank
        self._session = session
        self._engine_url = engine_url
        self._unload_after_seconds = unload_after_seconds
        self._serves = serves
        self._clock = clock
        self._wanted = config.initial
        self._paths: dict[tuple[str, str, str | None], str] = {}
        """Folders of adapters, by key."""
        self._attempts: dict[tuple[str, str, str | None], _Attempt] = {}
        """Of adapters that failed."""
        self._leaving: dict[str, float] = {}
        """By name: when one that is not wanted any more is unloaded."""
        self._present: dict[str, str] = {}
        """What the engine has: path by name."""
        self._loaded: dict[str, AdapterSource] = {}
        """What was loaded last, by name."""
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    def want(self, adapters: tuple[AdapterSource, ...]) -> None:
        """Exactly these are wanted from now on."""
        if adapters == self._wanted:
            return
        logger.info("adapters_wanted names=%s", ",".join(each.name for each in adapters) or "-")
        self._wanted = adapters
        self._attempts.clear()
        self._changed.set()

    def report(self) -> tuple[AdapterReport, ...]:
        """What there is of each wanted adapter."""
        wanted = {each.name for each in self._wanted}
        leaving = (self._loaded[name] for name in sorted(self._leaving) if name in self._loaded and name not in wanted)
        return (
            *(self._report(each) for each in self._wanted),
            *(_reported(each, AdapterState.LEAVING) for each in leaving),
        )

    def _report(self, adapter: AdapterSource) -> AdapterReport:
        attempt = self._attempts.get(adapter.key)
        if self._serves() and self._has(adapter):
            return _reported(adapter, AdapterState.LOADED)
        if attempt is not None:
            return _reported(adapter, AdapterState.FAILED, attempt.message, lasting=attempt.lasting)
        return _reported(adapter, AdapterState.LOADING)

    def _has(self, adapter: AdapterSource) -> bool:
        path = self._paths.get(adapter.key)
        return path is not None and self._present.get(adapter.name) == path

    async def run(self) -> None:
        """Keep them until cancelled."""
        while True:
            if self._serves():
                await self.settle()
            try:
                async with asyncio.timeout(self._pause_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _pause_seconds(self) -> float:
        now = self._clock()
        due = [*self._leaving.values(), *(attempt.again_at for attempt in self._attempts.values())]
        return min([_LOOK_SECONDS, *(max(at - now, 0.1) for at in due)])

    async def settle(self) -> None:
        """Load and unload what is due, each once; what fails is logged and reported."""
        async with self._turn:
            self._changed.clear()
            try:
                self._present = await self._listed()
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
                logger.warning("adapters_unknown error=%r", error)
                return
            for adapter in self._wanted:
                await self._keep(adapter)
            for name in self._present.keys() - {each.name for each in self._wanted}:
                await self._unload(name)
            self._leaving = {name: at for name, at in self._leaving.items() if name in self._present}

    async def _keep(self, adapter: AdapterSource) -> None:
        attempt = self._attempts.get(adapter.key)
        if attempt is not None and attempt.again_at > self._clock():
            return
        try:
            path = self._paths.get(adapter.key) or str(await adapter_folder(adapter))
            self._paths[adapter.key] = path
            present = self._present.get(adapter.name)
            if present == path:
                self._leaving.pop(adapter.name, None)
            elif present is not None:
                await self._unload(adapter.name)  # other weights had the name: what still runs with them ends first
            if adapter.name not in self._present:
                await self._load(adapter, path)
        except AdapterError as error:
            self._failed(adapter, str(error), lasting=error.lasting)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._failed(adapter, f"the engine did not load it ({error!r}): it is tried again", lasting=False)
        else:
            self._attempts.pop(adapter.key, None)

    async def _load(self, adapter: AdapterSource, path: str) -> None:
        await asyncio.to_thread(check_files, adapter, Path(path), max_rank=self._max_rank)
        began = self._clock()
        status, said = await self._call("load", {"lora_name": adapter.name, "lora_path": path})
        if status != 200:
            raise AdapterError(f"the engine refuses it: {said}")
        self._present[adapter.name] = path
        self._loaded[adapter.name] = adapter
        logger.info("adapter_loaded name=%s path=%s seconds=%.2f", adapter.name, path, self._clock() - began)

    async def _unload(self, name: str) -> None:
        """Unload one that is not wanted any more, once no request of it can be under way."""
        if self._clock() < self._leaving.setdefault(name, self._clock() + self._unload_after_seconds):
            return
        try:
            status, said = await self._call("unload", {"lora_name": name})
        except (aiohttp.ClientError, TimeoutError) as error:
            status, said = 0, repr(error)
        if status in (200, 404):
            self._present.pop(name, None)
            self._loaded.pop(name, None)
            logger.info("adapter_unloaded name=%s", name)
        else:
            self._leaving[name] = self._clock() + _RETRY_SECONDS[0]
            logger.warning("adapter_not_unloaded name=%s status=%d why=%r", name, status, said)

    def _failed(self, adapter: AdapterSource, message: str, *, lasting: bool) -> None:
        before = self._attempts.get(adapter.key)
        first, longest = _RETRY_SECONDS
        pause = first if before is None else min(2 * before.pause_seconds, longest)
        self._attempts[adapter.key] = _Attempt(message, lasting, self._clock() + pause, pause)
        if not adapter.source.startswith("/"):
            self._paths.pop(adapter.key, None)
        if before is None or before.message != message:
            logger.warning("adapter_failed name=%s why=%r", adapter.name, message)

    async def _listed(self) -> dict[str, str]:
        timeout = aiohttp.ClientTimeout(total=_LIST_SECONDS)
        async with self._session.get(f"{self._engine_url}/v1/models", timeout=timeout) as response:
            response.raise_for_status()
            body = await _read(response)
        cards = msgspec.json.decode(body, type=_Cards).data
        return {card.id: card.root or "" for card in cards if card.parent is not None}

    async def _call(self, what: str, body: dict[str, Any]) -> tuple[int, str]:
        url, timeout = f"{self._engine_url}/v1/{what}_lora_adapter", aiohttp.ClientTimeout(total=_LOAD_SECONDS)
        async with self._session.post(url, json=body, timeout=timeout) as response:
            return response.status, _message((await _read(response)).decode(errors="replace"))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The answer, up to a bound."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > _LISTED_BYTES:
            break
    return bytes(body)


def _reported(
    adapter: AdapterSource, state: AdapterState, message: str = "", *, lasting: bool = False
) -> AdapterReport:
    name, source, revision = adapter.key
    return AdapterReport(
        name=name, source=source, revision=revision, state=state.value, message=message, lasting=lasting
    )


def _message(said: str) -> str:
    """What vLLM says of an error, of its error object."""
    try:
        return str(msgspec.json.decode(said)["error"]["message"])[:_SHOWN]
    except (msgspec.DecodeError, KeyError, TypeError):
        return said[:_SHOWN]
