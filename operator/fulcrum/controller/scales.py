"""Keep a cluster's InferenceScales: one for each role of each pool in mode External, and none in other modes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from fulcrum.api.names import scale_name
from fulcrum.api.objects import to_dict
from fulcrum.api.reasons import Reason
from fulcrum.api.scale_types import InferenceScaleStatus, ScaleCondition, ScaleConditionType
from fulcrum.api.status import timestamp
from fulcrum.api.types import ConditionStatus
from fulcrum.controller.child_sync import NameTakenError, why_taken
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.inference_scale import inference_scale, pod_selector
from fulcrum.controller.kube import INFERENCE_SCALE, ApiFailure, Kube
from fulcrum.controller.observed import is_owned
from fulcrum.decide import ObservedWorker, RoleScale

logger = logging.getLogger(__name__)


_MISSING: Final = (
    "InferenceScales cannot be read, so that what stands is held. Apply the CRD inferencescales.fulcrum.dev and the "
    "operator's roles of this release (docs/operations/autoscaling.md)."
)


class ScaleSync:
    """Keeps the InferenceScales of one cluster, for one tick. It never changes the spec of one that is there."""

    def __init__(self, kube: Kube, owner: Owner, *, workers: tuple[ObservedWorker, ...], now: datetime) -> None:
        self._kube, self._owner, self._workers, self._now = kube, owner, workers, now

    async def sync(self, wanted: Iterable[RoleScale], live: Iterable[Manifest] | None) -> None:
        """Make what is missing, remove what is not wanted, and say in each status what it gets.

        `live` is None where InferenceScales cannot be read. Errors: ApiFailure; NameTakenError, once all others are up
        to date.
        """
        scales = {scale_name(self._owner.name, scale.pool, scale.role): scale for scale in wanted}
        if live is None:
            if scales:
                raise ApiFailure(_MISSING)
            return
        existing = {scale["metadata"]["name"]: scale for scale in live if "deletionTimestamp" not in scale["metadata"]}
        for name in existing.keys() - scales.keys():
            await self._remove(existing[name]["metadata"])
        taken = [await self._keep(name, scale, existing.get(name)) for name, scale in scales.items()]
        if any(taken):
            raise NameTakenError(" ".join(filter(None, taken)))

    async def _remove(self, metadata: Manifest) -> None:
        owner, name = self._owner, metadata["name"]
        if is_owned(metadata, owner.uid):
            await self._kube.delete(INFERENCE_SCALE, owner.namespace, name, uid=metadata["uid"])
            logger.info("scale_removed namespace=%s cluster=%s scale=%s", owner.namespace, owner.name, name)

    async def _keep(self, name: str, scale: RoleScale, found: Manifest | None) -> str | None:
        """Make it if it is not there, and write its status if it is another one; returns why the name is taken."""
        manifest = inference_scale(self._owner, pool=scale.pool, role=scale.role, replicas=scale.asked)
        document = found or await self._kube.create(INFERENCE_SCALE, manifest)
        if document is None or not is_owned(document["metadata"], self._owner.uid):
            # One without our label is not watched: that it is there is known, and no more.
            return why_taken(document or {"metadata": {"name": name}}, manifest)
        status = to_dict(self._status(scale, document))
        if status != document.get("status"):
            await self._kube.apply_status(INFERENCE_SCALE, self._owner.namespace, name, status)
        return None

    def _status(self, scale: RoleScale, document: Manifest) -> InferenceScaleStatus:
        having = [w for w in self._workers if w.live and (w.pool, w.role) == (scale.pool, scale.role)]
        generation = int(document["metadata"].get("generation") or 0)
        return InferenceScaleStatus(
            replicas=len(having),
            ready_replicas=sum(worker.serving for worker in having),
            desired_replicas=scale.desired,
            selector=pod_selector(self._owner.name, scale.pool, scale.role),
            observed_generation=generation,
            conditions=(_limited(scale, document, generation, self._now),),
        )


def _limited(scale: RoleScale, document: Manifest, generation: int, now: datetime) -> ScaleCondition:
    try:
        before = msgspec.convert(document.get("status") or {}, InferenceScaleStatus).conditions
    except msgspec.ValidationError:  # another release wrote it
        before = ()
    status = ConditionStatus.TRUE if scale.limit else ConditionStatus.FALSE
    since = next((each.last_transition_time for each in before if each.status is status), timestamp(now))
    return ScaleCondition(
        type=ScaleConditionType.LIMITED,
        status=status,
        reason=Reason.OUT_OF_BOUNDS if scale.limit else Reason.WITHIN_BOUNDS,
        message=scale.limit or "The pool's bounds leave room for what is asked for.",
        observed_generation=generation,
        last_transition_time=since,
    )
