"""What places all Pods of a worker on several nodes at once: what the spec asks for, and what the API server has."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fulcrum.api.messages import names_of
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Gang, InferenceClusterSpec, Pool
from fulcrum.controller.kube import POD_GROUP, Kube
from fulcrum.decide import Refusal
from fulcrum.kube import ApiError, ApiFailure

API_GROUPS: Final = {Gang.VOLCANO: f"/apis/{POD_GROUP.api_version}", Gang.KUEUE: "/apis/kueue.x-k8s.io"}
"""Paths that an API server answers where it has the kinds of a scheduler. Everyone may ask for them."""


class GangSchedulers:
    """Asks the API server now and then which schedulers it has."""

    def __init__(self, kube: Kube, *, resync_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._known: dict[Gang, tuple[bool, float]] = {}

    async def chosen(self, spec: InferenceClusterSpec) -> Gang:
        """Return what new workers are scheduled by: what the spec says, or what Auto comes to; Off without groups."""
        wanted = spec.scheduling
        if not groups(spec):
            return Gang.OFF
        if wanted.gang is not Gang.AUTO:
            return wanted.gang
        if await self.has(Gang.VOLCANO):
            return Gang.VOLCANO
        return Gang.KUEUE if wanted.queue is not None and await self.has(Gang.KUEUE) else Gang.OFF

    async def missing(self, spec: InferenceClusterSpec) -> dict[str, Refusal]:
        """Return, by pool, why no worker on several nodes is made: the scheduler that the spec names is not there."""
        gang = spec.scheduling.gang
        if gang not in API_GROUPS or not groups(spec) or await self.has(gang) is not False:
            return {}
        message = (
            f"spec.scheduling.gang: the API server has no {API_GROUPS[gang].removeprefix('/apis/')}, so nothing would "
            f"schedule the workers: install {gang.value}, or set gang to Auto or Off."
        )
        return {pool.name: Refusal(message=message, reason=Reason.GANG_SCHEDULER_MISSING) for pool in groups(spec)}

    async def has(self, gang: Gang) -> bool | None:
        """Report whether the API server has the kinds of a scheduler; None: it has not answered yet."""
        known, now = self._known.get(gang), self._clock()
        if known is not None and now - known[1] < self._resync_seconds:
            return known[0]
        try:
            await self._kube.api.get(API_GROUPS[gang])
        except ApiFailure as error:
            if not (isinstance(error, ApiError) and error.code == HTTPStatus.NOT_FOUND):
                return None if known is None else known[0]
            there = False
        else:
            there = True
        self._known[gang] = (there, now)
        return there


def groups(spec: InferenceClusterSpec) -> list[Pool]:
    """Return the pools whose workers are groups of Pods."""
    return [pool for pool in spec.pools if pool.nodes > 1 and pool.workers.max > 0]


def scheduling_note(spec: InferenceClusterSpec, chosen: Gang) -> str:
    """Return what the status says of workers whose Pods are placed one by one though the spec leaves it open."""
    if chosen is not Gang.OFF or spec.scheduling.gang is not Gang.AUTO or not groups(spec):
        return ""
    return (
        f"Workers of pool {names_of(sorted(pool.name for pool in groups(spec)))} start Pod by Pod, so two of them may "
        "wait for each other's nodes: install Volcano, or Kueue and set spec.scheduling.queue."
    )
