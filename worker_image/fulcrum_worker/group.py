"""The place of this Pod among those of a worker on several nodes, as the LeaderWorkerSet's controller tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fulcrum.api.names import ENV_GROUP_INDEX, ENV_GROUP_LEADER, ENV_WORKER_CONFIG
from fulcrum.api.worker import WorkerConfig
from fulcrum_worker.config import BadConfigError
from fulcrum_worker.readiness import SideChannel

logger = logging.getLogger(__name__)

_LOOKUP_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """One of `nodes` Pods that run one engine together."""

    nodes: int
    rank: int
    """0 leads: it alone answers requests."""
    leader: str
    """Host name of the Pod with rank 0."""

    def host(self, node: int) -> str:
        """Host name of another Pod: they are named after their leader."""
        name, dot, domain = self.leader.partition(".")
        return f"{name}-{node}{dot}{domain}"


def read_place(config: WorkerConfig, environment: Mapping[str, str]) -> GroupPlace | None:
    """Return the place; None for a worker on one node. Raises BadConfigError where the environment does not tell it."""
    if config.nodes == 1:
        return None
    if config.nodes < 1 or config.gpus % config.nodes:
        raise BadConfigError(
            f"{ENV_WORKER_CONFIG}: nodes: {config.nodes} do not share tensorParallel * pipelineParallel * dataParallel "
            "GPUs evenly"
        )
    rank, leader = environment.get(ENV_GROUP_INDEX, ""), environment.get(ENV_GROUP_LEADER, "")
    if not rank.isdecimal() or int(rank) >= config.nodes:
        raise BadConfigError(
            f"{ENV_GROUP_INDEX}: {rank!r} is not a number below {config.nodes}; a LeaderWorkerSet sets it"
        )
    if not leader:
        raise BadConfigError(f"{ENV_GROUP_LEADER}: is not set; a LeaderWorkerSet sets it")
    return GroupPlace(nodes=config.nodes, rank=int(rank), leader=leader)


def side_channels(config: WorkerConfig, ip: str, place: GroupPlace | None) -> tuple[SideChannel, ...]:
    """Return where peers ask each rank of a worker what to pull; `ip` is that of the Pod that leads.

    A rank adds its number to the port.
    """

    def host(node: int) -> str:
        return ip if node == 0 or place is None else place.host(node)

    ranks = config.data_parallel
    return tuple((host(rank * config.nodes // ranks), config.ports.nixl + rank) for rank in range(ranks))


async def wait_for_nodes(place: GroupPlace, told: Callable[[str | None], None]) -> None:
    """Wait until each other node has an address, and tell which has none until then, and None in the end.

    A Pod of a LeaderWorkerSet has its name in DNS from its start on, ready or not.
    """
    before = None
    while (missing := await _missing(place)) is not None:
        if missing != before:
            logger.info("group_waits reason=%r", missing)
        told(before := missing)
        await asyncio.sleep(_POLL_SECONDS)
    told(None)


async def _missing(place: GroupPlace) -> str | None:
    for node in range(1, place.nodes):
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                await asyncio.get_running_loop().getaddrinfo(place.host(node), None)
        except (OSError, TimeoutError):
            return f"node {node} ({place.host(node)}) has no address: its Pod does not run yet"
    return None
