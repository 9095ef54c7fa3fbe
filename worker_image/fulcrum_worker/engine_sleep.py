"""Puts the engine to sleep and wakes it, by vLLM's sleep mode. Level-triggered: what is wanted last is made so.

At level 1 vLLM moves the weights to the host's memory, at level 2 it drops them; the KV cache is gone at both. After
level 2 they are loaded again before there is memory for KV: vLLM schedules nothing until it has both (0.32,
`EngineCore.wake_up`), so no request is computed with weights that are not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec

from fulcrum.api.worker import EngineSleepState, SleepRequest
from fulcrum_worker.drain import wait_until_idle
from fulcrum_worker.engine_access import agent_headers
from fulcrum_worker.engine_metrics import EngineMetrics
from fulcrum_worker.roles import WorkerRole

logger = logging.getLogger(__name__)

AWAKE: Final = 0
LEVELS: Final = (AWAKE, 1, 2)
_ASK_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 2.0
"""Longest wait for two idle looks in a row before it is asked again what is wanted: its worker may have a role now."""
_RETRY_SECONDS: Final = 30.0
"""Pause after vLLM refused to sleep: it serves meanwhile."""
_READ_BYTES: Final = 64 * 1024
"""Most of an answer of vLLM that is read."""


class EngineSleepError(Exception):
    """vLLM did not do what it was asked; the message says which call, and what it said."""


class EngineSleep:
    """The sleep of one engine."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engine_url: str,
        key: str,
        *,
        timeout_seconds: float,
        metrics: Callable[[], Awaitable[EngineMetrics]],
        role: Callable[[], WorkerRole],
        serves: Callable[[], bool],
    ) -> None:
        """`key` opens vLLM's development routes (`engine_access`). `timeout_seconds` bounds falling asleep and waking.
        `serves`: whether the engine has come up."""
        self._session = session
        self._engine_url = engine_url
        self._headers = agent_headers(key)
        self._timeout_seconds = timeout_seconds
        self._metrics = metrics
        self._role = role
        self._serves = serves
        self._wanted = SleepRequest(level=AWAKE, role_epoch=0)
        self._level = AWAKE
        """Level at which it sleeps."""
        self._changed = asyncio.Event()
        self.state = EngineSleepState.AWAKE
        self.failed = asyncio.Event()
        """Set when the engine can be used no more: it is to be started again."""
        self.failure = ""

    def want(self, request: SleepRequest) -> str | None:
        """Take over what is wanted; return why not, where it is refused."""
        role = self._role()
        if request.level not in LEVELS:
            return f"level is {request.level}; it must be one of {', '.join(map(str, LEVELS))}"
        if request.level and (not role.draining or request.role_epoch != role.epoch):
            return f"only a worker that drains is put to sleep; this one is {role.role} at epoch {role.epoch}"
        if request != self._wanted:
            logger.info("sleep_wanted level=%d epoch=%d", request.level, request.role_epoch)
            self._wanted = request
            self._changed.set()
        return None

    @property
    def _target(self) -> int:
        """The level that is wanted; a role that was given since ends the wish to sleep."""
        role = self._role()
        return self._wanted.level if role.draining and role.epoch == self._wanted.role_epoch else AWAKE

    async def run(self) -> None:
        """Follow what is wanted until cancelled, or until the engine has failed."""
        while not self.failed.is_set():
            pause = 1.0
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._settle()
            except (TimeoutError, aiohttp.ClientError, EngineSleepError, msgspec.DecodeError) as error:
                if await self._is_awake():
                    logger.warning("sleep_refused error=%r", error)
                    self.state, pause = EngineSleepState.AWAKE, _RETRY_SECONDS
                else:
                    what = "wake up" if self.state == EngineSleepState.WAKING else "fall asleep"
                    self.failure = f"vLLM did not {what}: {str(error) or f'no end after {self._timeout_seconds:g} s'}"
                    self.failed.set()
            self._changed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _settle(self) -> None:
        target = self._target
        if not self._serves() or target == self._level:
            return
        if self._level != AWAKE:
            self.state = EngineSleepState.WAKING
            await self._wake()
            self._level, self.state = AWAKE, EngineSleepState.AWAKE
            logger.info("engine_awake")
            return
        self.state = EngineSleepState.FALLING_ASLEEP
        idle = await wait_until_idle(self._metrics, timeout_seconds=_IDLE_SECONDS)
        if not idle or self._target == AWAKE:
            self.state = EngineSleepState.AWAKE
            return
        # Requests that come in this instant wait in the engine, and are computed after the wake.
        await self._post(f"/sleep?level={target}&mode=wait")
        self._level, self.state = target, EngineSleepState.ASLEEP
        logger.info("engine_asleep level=%d", target)

    async def _wake(self) -> None:
        if self._level == 1:
            await self._post("/wake_up")
        else:
            await self._post("/wake_up?tags=weights")
            await self._post("/collective_rpc", {"method": "reload_weights"})
            await self._post("/wake_up?tags=kv_cache")
        if not await self._is_awake():
            raise EngineSleepError("/is_sleeping says that it still sleeps")

    async def _is_awake(self) -> bool:
        url, timeout = f"{self._engine_url}/is_sleeping", aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            async with self._session.get(url, headers=self._headers, timeout=timeout) as response:
                if response.status != 200:
                    return False
                said = msgspec.json.decode(await response.content.read(_READ_BYTES))
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return False
        return isinstance(said, dict) and said.get("is_sleeping") is False

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        timeout = aiohttp.ClientTimeout(total=None)  # that of the whole is `_timeout_seconds`
        url = f"{self._engine_url}{path}"
        async with self._session.post(url, json=body, headers=self._headers, timeout=timeout) as response:
            if response.status != 200:
                said = (await response.content.read(_READ_BYTES)).decode(errors="replace")[:300]
                raise EngineSleepError(f"{path} answered {response.status}: {said}")
