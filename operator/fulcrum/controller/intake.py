"""kopf in a thread of its own: it ends as a whole when one object is too much for it, and then only this intake ends.

`caches` watches the same objects, so that nothing is missed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from fulcrum.controller.cluster_watches import ClusterKey
from fulcrum.controller.queue import Wake

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 5.0
"""Pause before kopf is begun anew after it ended by itself; it doubles with each end."""
_LONGEST_PAUSE_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 5.0
"""How long the end of the process waits for kopf, which writes nothing."""


class Intake:
    """Tells of InferenceClusters that come, change and go."""

    def __init__(self, namespaces: Sequence[str], enqueue: Callable[[ClusterKey, Wake], None]) -> None:
        """Of `namespaces`, or of all when there are none; `enqueue` is called in the loop of `run`."""
        self._namespaces = list(namespaces)
        self._enqueue = enqueue

    async def run(self) -> None:
        """Work until cancelled."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            await self._listen()
            logger.warning("intake_ended anew_seconds=%.0f; changes are told by the caches meanwhile", pause_seconds)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def _listen(self) -> None:
        """Run kopf until it ends; ends it when cancelled."""
        loop, ended, stop = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def enqueue(key: ClusterKey, wake: Wake) -> None:
            loop.call_soon_threadsafe(self._enqueue, key, wake)

        def listen() -> None:
            try:
                asyncio.run(self._kopf(enqueue, stop))
            except Exception as error:  # noqa: BLE001 (whatever it is, it must not end the operator)
                logger.warning("intake_failed error=%r", error)
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(ended.set)

        # A daemon: the end of the process does not wait for it.
        thread = threading.Thread(target=listen, name="kopf", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, _STOP_SECONDS)

    async def _kopf(self, enqueue: Callable[[ClusterKey, Wake], None], stop: threading.Event) -> None:
        import kopf

        from fulcrum.controller.handlers import make_registry, make_settings

        # It warns that signals are not its own here, which is as wanted.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        await kopf.operator(
            registry=make_registry(enqueue),
            settings=make_settings(all_namespaces=not self._namespaces),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
        )
