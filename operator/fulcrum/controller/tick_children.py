"""What a tick brings up to date beside workers: gateways, Services, policies, and InferenceScales."""

from __future__ import annotations

import logging
import time

from fulcrum.api.names import batch_name, gateway_name
from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode
from fulcrum.controller.caches import Caches
from fulcrum.controller.child_sync import ChildSync, NameTakenError
from fulcrum.controller.children import children
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import INFERENCE_SCALE, ApiFailure, Kube
from fulcrum.controller.observed import is_owned
from fulcrum.controller.scales import ScaleSync
from fulcrum.controller.tick import Failure, Tick
from fulcrum.decide.tuning import TUNING

logger = logging.getLogger(__name__)


class TickChildren:
    """Brings the children of clusters up to date; what could not be done is returned."""

    def __init__(self, kube: Kube, caches: Caches, installation: Installation) -> None:
        self._kube = kube
        self._caches = caches
        self._installation = installation
        self._child_sync = ChildSync(kube)

    async def sync(self, tick: Tick) -> list[Failure]:
        """Bring children up to date, if the token is known and the cluster is not paused, then InferenceScales."""
        failures = [] if tick.seen.token.text is None or tick.snapshot.paused else await self._sync_children(tick)
        return failures + await self._sync_scales(tick)

    async def _sync_children(self, tick: Tick) -> list[Failure]:
        """Compare what was read anyway each time, and the rest when the spec changed or after a while."""
        owner, observed, cluster, memory = tick.owner, tick.observed, tick.cluster, tick.memory
        live_batch = observed.batch
        wanted = children(
            owner,
            cluster.spec,
            self._installation,
            token_fingerprint=tick.seen.token.fingerprint or "",
            least_available=tick.plan.least_available,
            gateway_address=tick.snapshot.gateway.cluster_ip,
            live_batch=live_batch if live_batch is not None and is_owned(live_batch["metadata"], owner.uid) else None,
            live_gateways=None if observed.deployment is None else tick.snapshot.gateway.desired,
            workers=tick.snapshot.workers,
        )
        name = gateway_name(owner.name)
        watched = {
            ("Deployment", name): observed.deployment,
            ("Service", name): observed.service,
            ("Deployment", batch_name(owner.name)): live_batch,
        }
        # Before a missing one is made it is read: what has its name may be without our label, and so not be watched.
        live = {key: child for key, child in watched.items() if child is not None}
        version = (cluster.metadata.uid, cluster.metadata.generation, tick.plan.least_available)
        due = memory.verified != version or time.monotonic() - memory.verified_at >= TUNING.resync_seconds
        if not due:
            wanted = tuple(child for child in wanted if (child["kind"], child["metadata"]["name"]) in watched)
        try:
            for kind, child_name in await self._child_sync.sync(owner.namespace, wanted, live):
                logger.info("child_applied namespace=%s kind=%s name=%s", owner.namespace, kind, child_name)
        except ApiFailure as error:
            return [Failure(message=str(error))]
        except NameTakenError as error:
            return [Failure(message=str(error), reason=Reason.NAME_TAKEN)]
        if due:
            memory.verified, memory.verified_at = version, time.monotonic()
            memory.taken_names.clear()
        return []

    async def _sync_scales(self, tick: Tick) -> list[Failure]:
        unknown = tick.cluster.spec.balance.mode is BalanceMode.EXTERNAL and not tick.plan.scales
        if tick.snapshot.paused or unknown:
            return []
        missing = self._caches.is_missing(INFERENCE_SCALE, tick.owner.namespace)
        sync = ScaleSync(self._kube, tick.owner, workers=tick.snapshot.workers, now=tick.seen.now)
        try:
            await sync.sync(tick.plan.scales, None if missing else tick.observed.scales)
        except ApiFailure as error:
            return [Failure(message=str(error))]
        except NameTakenError as error:
            return [Failure(message=str(error), reason=Reason.NAME_TAKEN)]
        return []
