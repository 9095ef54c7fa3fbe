"""All controllers of local mode in one task."""

from __future__ import annotations

import asyncio
import logging

from lightkube.config.kubeconfig import SingleConfig

from fulcrum.local.controllers.cluster import Cluster
from fulcrum.local.controllers.deployments import Deployments
from fulcrum.local.controllers.disruption import Disruption
from fulcrum.local.controllers.endpoints import Endpoints
from fulcrum.local.controllers.garbage_collection import GarbageCollection
from fulcrum.local.controllers.replicasets import ReplicaSets
from fulcrum.local.controllers.scheduler import Scheduler
from fulcrum.local.kubelet.rest import Api

logger = logging.getLogger(__name__)
_CONTROLLERS = (Deployments, ReplicaSets, Scheduler, Endpoints, Disruption, GarbageCollection)
_Controller = Deployments | ReplicaSets | Scheduler | Endpoints | Disruption | GarbageCollection


async def run_controllers(client_config: SingleConfig, stop: asyncio.Event) -> None:
    """Run every controller against the API server of `client_config` until `stop` is set.

    An API server that cannot be reached is waited for; what happened in the meantime is noticed by listing.
    """
    api = Api(client_config)
    try:
        async with asyncio.TaskGroup() as tasks:
            cluster = Cluster(api, tasks)
            running = [tasks.create_task(_run(controller(cluster))) for controller in _CONTROLLERS]
            await stop.wait()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)  # they may still ask for informers
            cluster.close()
    finally:
        await api.close()


async def _run(controller: _Controller) -> None:
    """Start with everything known: half a view would create what is already there."""
    for informer in controller.informers:
        await informer.synced.wait()
    logger.info("controller_started", extra={"controller": type(controller).__name__})
    await controller.run()
