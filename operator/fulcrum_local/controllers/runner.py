"""All controllers of local mode in one task."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from fulcrum.kube import Api
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.deployments import Deployments
from fulcrum_local.controllers.disruption import Disruption
from fulcrum_local.controllers.endpoints import Endpoints
from fulcrum_local.controllers.garbage_collection import GarbageCollection
from fulcrum_local.controllers.nodes import NodeLifecycle, NodeTimes
from fulcrum_local.controllers.replicasets import ReplicaSets
from fulcrum_local.controllers.scheduler import Scheduler

logger = logging.getLogger(__name__)
_CONTROLLERS = (Deployments, ReplicaSets, Scheduler, Endpoints, Disruption, GarbageCollection)
_Controller = Deployments | ReplicaSets | Scheduler | Endpoints | Disruption | GarbageCollection | NodeLifecycle


async def run_controllers(kubeconfig: str | Path, stop: asyncio.Event, node_times: NodeTimes | None = None) -> None:
    """Run every controller against the API server of `kubeconfig` until `stop` is set.

    An API server that cannot be reached is waited for; what happened in the meantime is noticed by listing.
    """
    api = Api(kubeconfig)
    try:
        async with asyncio.TaskGroup() as tasks:
            cluster = Cluster(api, tasks)
            controllers = [*(make(cluster) for make in _CONTROLLERS), NodeLifecycle(cluster, node_times)]
            running = [tasks.create_task(_run(controller)) for controller in controllers]
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
