"""Leader election by a Lease: of several operators one acts. The rules are client-go's (`tools/leaderelection`).

Clocks of different machines are never compared: a candidate watches, by its own clock, for how long the Lease has stood
unchanged. The holder stops by its own clock, too, and earlier than another operator may begin.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fulcrum.api.errors import InvalidValueError
from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import LEASE, ApiFailure, Kube
from fulcrum.controller.metrics import Metrics

logger = logging.getLogger(__name__)

JITTER: Final = 1.2
"""Candidates wait up to this much longer between attempts, so that they do not keep coming at the same moment."""


class LeaseLostError(Exception):
    """Another operator leads, or may soon: this process has to stop acting at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """Which Lease, this operator's identity in it, and its times.

    Errors: InvalidValueError when the times do not fit together.
    """

    namespace: str
    name: str
    identity: str
    """Name of the Pod: unique among those alive, and the same after a restart, which then need not wait."""
    lease_seconds: int = 15
    """How long the Lease must have stood unchanged before another candidate takes it."""
    renew_deadline_seconds: float = 10.0
    """How long the holder acts without having renewed it."""
    retry_seconds: float = 2.0
    """Between attempts to renew it, or to get it."""

    def __post_init__(self) -> None:
        if not self.retry_seconds > 0 or self.renew_deadline_seconds < self.retry_seconds * JITTER:
            raise InvalidValueError(
                value=self.renew_deadline_seconds,
                problem=f"is too short to try again after {self.retry_seconds:g}s",
                fix="let the renew deadline be several times the retry period",
            )
        if self.lease_seconds <= self.renew_deadline_seconds:
            raise InvalidValueError(
                value=self.lease_seconds,
                problem="lets another operator begin before this one has stopped",
                fix=f"let the lease last longer than the renew deadline of {self.renew_deadline_seconds:g}s",
            )


def machine_clock() -> float:
    """Return seconds that pass also while the machine sleeps: a holder that was asleep must notice."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """One candidate. `acquire`, then `hold` while acting, then `release`."""

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        election: Election,
        *,
        clock: Callable[[], float] = machine_clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._election = election
        self._clock = clock
        self._now = now
        self._jitter = jitter
        self._seen: Manifest | None = None
        """The Lease as last read or written."""
        self._seen_at = 0.0
        """When its spec was first seen to be so."""
        self._renewed_at: float | None = None
        """When the last write that made or kept us the holder was sent; None while we are not."""
        metrics.leads(leads=False)

    def leads(self) -> bool:
        """Report whether this process may write. Turns false by the clock alone, whatever else hangs."""
        return self._renewed_at is not None and self._seconds_left() > 0

    async def acquire(self) -> None:
        """Wait until this process leads."""
        said = ""
        while True:
            try:
                async with asyncio.timeout(self._election.renew_deadline_seconds):
                    if await self._try():
                        break
            except (TimeoutError, ApiFailure) as error:
                logger.warning("lease_unreachable lease=%s error=%r", self._name, error)
            holder = self._holder()
            if holder != said:
                logger.info("leader_is_another lease=%s holder=%s", self._name, holder or "none")
                said = holder
            await asyncio.sleep(self._election.retry_seconds * (1 + (JITTER - 1) * self._jitter()))
        self._metrics.leads(leads=True)
        logger.info("leader_became lease=%s identity=%s", self._name, self._election.identity)

    async def hold(self) -> None:
        """Keep renewing; never returns. Errors: LeaseLostError when it could not be renewed in time, or was taken."""
        while True:
            await asyncio.sleep(min(self._election.retry_seconds, max(0.0, self._seconds_left())))
            if await self._renewed():
                continue
            taken = self._holder() not in ("", self._election.identity)
            if taken or self._seconds_left() <= 0:
                self._step_down()
                why = f"was taken by {self._holder()}" if taken else "could not be renewed in time"
                raise LeaseLostError(f"the Lease {self._name} {why}")

    async def release(self) -> None:
        """Give the Lease up, so that another candidate need not wait for its end."""
        was_leading = self.leads()
        self._step_down()
        if not was_leading or self._seen is None:
            return
        try:
            async with asyncio.timeout(self._election.retry_seconds):
                if not await self._give_up(self._seen):
                    # A renewal that was cut off by the end had been written: ours is still the name in it.
                    lease = await self._kube.get(LEASE, self._election.namespace, self._election.name)
                    if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._election.identity:
                        await self._give_up(lease)
        except (TimeoutError, ApiFailure) as error:
            logger.warning("lease_not_released lease=%s error=%r", self._name, error)
        else:
            logger.info("leader_released lease=%s", self._name)

    async def _give_up(self, lease: Manifest) -> bool:
        # One second and no holder: any operator may take it at once.
        spec = {**lease["spec"], "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
        spec.pop("holderIdentity", None)
        return await self._kube.replace(LEASE, {**lease, "spec": spec}) is not None

    async def _renewed(self) -> bool:
        # Half the deadline for one attempt: a server that hangs leaves time for a second one.
        seconds = min(self._election.renew_deadline_seconds / 2, self._seconds_left())
        try:
            async with asyncio.timeout(seconds):
                return await self._try()
        except (TimeoutError, ApiFailure) as error:
            logger.warning("lease_not_renewed lease=%s left_seconds=%.1f error=%r", self._name, seconds, error)
            return False

    async def _try(self) -> bool:
        """Make or keep this process the holder, where the Lease allows it."""
        lease = await self._kube.get(LEASE, self._election.namespace, self._election.name)
        if lease is None:
            metadata = {"name": self._election.name, "namespace": self._election.namespace}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            sent_at = self._clock()
            return self._took(await self._kube.create(LEASE, {**lease, "spec": self._spec({})}), sent_at)
        self._see(lease)
        if self._is_taken():
            return False
        sent_at = self._clock()
        # The resourceVersion in it makes the write fail when another candidate was quicker.
        return self._took(
            await self._kube.replace(LEASE, {**lease, "spec": self._spec(lease.get("spec") or {})}), sent_at
        )

    def _spec(self, before: Manifest) -> Manifest:
        moment = self._timestamp()
        kept = before.get("holderIdentity") == self._election.identity
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            **before,
            "holderIdentity": self._election.identity,
            "leaseDurationSeconds": self._election.lease_seconds,
            "acquireTime": (before.get("acquireTime") if kept else None) or moment,
            "renewTime": moment,
            "leaseTransitions": transitions if kept or not before else transitions + 1,
        }

    def _took(self, written: Manifest | None, sent_at: float) -> bool:
        if written is None:
            return False
        self._see(written)
        # Others count from when they see the write, which is later.
        self._renewed_at = sent_at
        return True

    def _see(self, lease: Manifest) -> None:
        if self._seen is None or self._seen.get("spec") != lease.get("spec"):
            self._seen_at = self._clock()
        self._seen = lease

    def _is_taken(self) -> bool:
        spec: dict[str, Any] = (self._seen or {}).get("spec") or {}
        if self._holder() in ("", self._election.identity):
            return False
        seconds = float(spec.get("leaseDurationSeconds") or self._election.lease_seconds)
        return self._clock() < self._seen_at + seconds

    def _holder(self) -> str:
        return str(((self._seen or {}).get("spec") or {}).get("holderIdentity") or "")

    def _seconds_left(self) -> float:
        if self._renewed_at is None:
            return 0.0
        return self._renewed_at + self._election.renew_deadline_seconds - self._clock()

    def _step_down(self) -> None:
        self._renewed_at = None
        self._metrics.leads(leads=False)

    def _timestamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @property
    def _name(self) -> str:
        return f"{self._election.namespace}/{self._election.name}"
