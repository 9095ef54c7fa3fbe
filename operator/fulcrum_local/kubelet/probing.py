"""The probes of one running container, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from fulcrum_local.kubelet import probers
from fulcrum_local.kubelet.events import Report
from fulcrum_local.kubelet.probers import Target
from fulcrum_local.kubelet.probes import ProbeKind, ProbeSpec, ProbeState

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_EAGER_SECONDS: Final = 0.5
"""Until its first success a probe is tried at least this often, so that a Pod does not wait for the next period;
failures count only once a period."""


class Probing:
    """`started` and `ready` as the probes say; `changed` is called when one of them changes.

    `has_started` is called once, when the container has started; `failed` when a startup or liveness probe has failed
    for good.
    """

    def __init__(
        self,
        container: Json,
        target: Target,
        *,
        begun: float,
        changed: Callable[[], None],
        has_started: Callable[[], None],
        failed: Callable[[ProbeSpec], None],
        report: Report,
    ) -> None:
        self.started = False
        self.ready = False
        self._container = container
        self._target = target
        self._begun = begun
        self._changed = changed
        self._has_started = has_started
        self._failed = failed
        self._report = report

    async def run(self) -> None:
        """Probe until cancelled, or until a probe has failed for good."""
        try:
            await self._run()
        except Exception:
            # A defect here must not look like a container that is merely not ready.
            logger.exception("probing_failed container=%s", self._container["name"])
            raise

    async def _run(self) -> None:
        startup = ProbeSpec.of(self._container, ProbeKind.STARTUP)
        if startup is not None and not self.started and not await self._probe_startup(startup):
            return
        self.started = True
        self._has_started()
        readiness = ProbeSpec.of(self._container, ProbeKind.READINESS)
        liveness = ProbeSpec.of(self._container, ProbeKind.LIVENESS)
        if readiness is None:
            self.ready = True
        self._changed()
        async with asyncio.TaskGroup() as group:
            if readiness is not None:
                group.create_task(self._probe_readiness(readiness))
            if liveness is not None:
                group.create_task(self._probe_liveness(liveness))

    async def _probe_startup(self, spec: ProbeSpec) -> bool:
        state = ProbeState()
        schedule = _Schedule(self._begun, spec)
        while True:
            await schedule.next(eager=True)
            if await self._try(spec, quiet=True):
                return True
            if not schedule.counts():
                continue
            state = state.after(False, spec)
            if state.verdict is False:
                self._failed(spec)
                return False

    async def _probe_readiness(self, spec: ProbeSpec) -> None:
        # An adopted container keeps its verdict until the probe says otherwise.
        state = ProbeState(verdict=True if self.ready else None)
        schedule = _Schedule(self._begun, spec)
        while True:
            await schedule.next(eager=state.verdict is None)
            ok = await self._try(spec, quiet=state.verdict is None)
            if not schedule.counts() and not ok:
                continue
            state = state.after(ok, spec)
            if state.verdict is not None and state.verdict is not self.ready:
                self.ready = state.verdict
                self._changed()

    async def _probe_liveness(self, spec: ProbeSpec) -> None:
        state = ProbeState()
        schedule = _Schedule(self._begun, spec)
        while True:
            await schedule.next(eager=False)
            schedule.counts()
            state = state.after(await self._try(spec), spec)
            if state.verdict is False:
                self._failed(spec)
                return

    async def _try(self, spec: ProbeSpec, *, quiet: bool = False) -> bool:
        """One result. `quiet`: that it is not ready yet is no news."""
        outcome = await probers.carry_out(spec.handler, self._target, timeout_seconds=spec.timeout_seconds)
        if not outcome.ok and not quiet:
            self._report("Unhealthy", f"{spec.kind.value.title()} probe failed: {outcome.message}", warning=True)
        return outcome.ok


class _Schedule:
    """Times of one probe: the first after its initial delay, then every period; more often while `eager`."""

    def __init__(self, begun: float, spec: ProbeSpec) -> None:
        self._spec = spec
        self._due = max(begun + spec.initial_delay_seconds, time.monotonic())
        self._first = True

    async def next(self, *, eager: bool) -> None:
        """Sleep until the next try."""
        wait_seconds = self._due - time.monotonic()
        if eager and not self._first:
            wait_seconds = min(wait_seconds, _EAGER_SECONDS)
        self._first = False
        if wait_seconds > 0:
            await asyncio.sleep(wait_seconds)

    def counts(self) -> bool:
        """Whether this try is one of the period's; if so the next one is a period later."""
        now = time.monotonic()
        if now < self._due - 0.01:  # timers have a resolution
            return False
        self._due = max(self._due + self._spec.period_seconds, now)
        return True
