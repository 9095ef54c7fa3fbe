"""What a tick says about itself: status and events."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from fulcrum.api.objects import to_dict
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterStatus
from fulcrum.controller.apply import Done
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.events import event_of_action, event_of_state
from fulcrum.controller.kube import EVENT, INFERENCE_CLUSTER, ApiFailure, Kube
from fulcrum.controller.published import PUBLISH_SECONDS, keeping_measurements
from fulcrum.controller.tick import MOST_FAILURES, Failure, Memory
from fulcrum.decide.tuning import TUNING
from fulcrum.report import PlanEvent, stopped_status

logger = logging.getLogger(__name__)

_FIGURES: Final = re.compile(r"[0-9]+")


class _Written(NamedTuple):
    """A status as it was written."""

    status: InferenceClusterStatus
    last: InferenceClusterStatus
    """The one that stood before."""
    again: bool
    """It had been written before, and did not stand."""
    rests_until: float


class Reporter:
    """Writes status and events. Remembers only what saves writes: when figures were written, and what was dropped."""

    def __init__(self, kube: Kube, *, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        self._published_at: dict[str, float] = {}
        self._written: dict[str, _Written] = {}

    async def post_events(self, owner: Owner, done: Iterable[Done], stated: Iterable[PlanEvent], now: datetime) -> None:
        """Post an event for each action that was carried out, and each change of state."""
        events = [event_of_action(owner, each, now, by=self._identity) for each in done]
        events += [event_of_state(owner, each, now, by=self._identity) for each in stated]
        for event in events:
            try:
                await self._kube.create(EVENT, event)
            except ApiFailure as error:
                # An event that cannot be posted is no reason to repeat what it is about.
                logger.warning("event_not_posted cluster=%s event=%s error=%r", owner.name, event["reason"], error)

    async def write_status(
        self,
        owner: Owner,
        last: InferenceClusterStatus,
        status: InferenceClusterStatus,
        *,
        rest_seconds: float = PUBLISH_SECONDS,
    ) -> None:
        """Write the status if it says something new; figures alone are no news until `rest_seconds` have passed."""
        if status == last:
            return
        now = time.monotonic()
        recent = now - self._published_at.get(owner.uid, float("-inf")) < rest_seconds
        if recent and keeping_measurements(status, last) == last:
            return
        before = self._written.get(owner.uid)
        again = before is not None and before.status == status
        if before is not None and again and before.again and before.last == last and now < before.rests_until:
            return  # a CRD of an older release drops a field of it: writing it once more changes nothing
        await self._kube.apply_status(INFERENCE_CLUSTER, owner.namespace, owner.name, to_dict(status))
        self._published_at[owner.uid] = now
        self._written[owner.uid] = _Written(status, last, again, now + TUNING.resync_seconds)

    async def say_stopped(
        self, namespace: str, document: Manifest, reason: Reason, message: str, now: datetime
    ) -> InferenceClusterStatus:
        """Say in the status that nothing can be decided about the object; returns that status."""
        try:
            last = msgspec.convert(document.get("status") or {}, InferenceClusterStatus)
        except msgspec.ValidationError:
            last = InferenceClusterStatus()
        metadata = document["metadata"]
        generation = int(metadata.get("generation") or 0)
        status = stopped_status(reason, message, status=last, generation=generation, now=now)
        logger.warning(
            "cluster_stopped namespace=%s cluster=%s reason=%s error=%s",
            namespace,
            metadata["name"],
            reason.value,
            message,
        )
        owner = Owner(name=metadata["name"], namespace=namespace, uid=metadata["uid"])
        await self.write_status(owner, last, status)
        return status

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a cluster that is gone."""
        self._published_at.pop(uid, None)
        self._written.pop(uid, None)


def news_of_failures(failures: Iterable[Failure], memory: Memory) -> list[PlanEvent]:
    """Return an event for each kind of failure that the last tick did not have: messages that differ by figures only,
    such as those of 500 workers, are of one kind."""
    kinds: dict[str, Failure] = {}
    for each in failures:
        kinds.setdefault(_plain(each.message), each)
    told, memory.told_failures = memory.told_failures, set(kinds)
    return [
        PlanEvent(reason=each.reason, message=each.message, subject=kind, warning=True)
        for kind, each in kinds.items()
        if kind not in told
    ][:MOST_FAILURES]


def _plain(message: str) -> str:
    return _FIGURES.sub("#", message)
