"""The place of this Pod among those of a worker on several nodes, as the LeaderWorkerSet's controller tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fulcrum.api.names import ENV_GROUP_INDEX, ENV_GROUP_LEADER, ENV_WORKER_CONFIG
from fulcrum.api.worker import WorkerConfig
from fulcrum_worker.config import BadConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """One of `nodes` Pods that run one engine together."""

    nodes: int
    rank: int
    """0 leads: it alone answers requests."""
    leader: str
    """Host name of the Pod with rank 0."""


def read_place(config: WorkerConfig, environment: Mapping[str, str]) -> GroupPlace | None:
    """Return the place; None for a worker on one node. Raises BadConfigError where the environment does not tell it."""
    if config.nodes == 1:
        return None
    if config.nodes < 1 or config.tensor_parallel * config.pipeline_parallel % config.nodes:
        raise BadConfigError(
            f"{ENV_WORKER_CONFIG}: nodes: {config.nodes} do not share tensorParallel * pipelineParallel GPUs evenly"
        )
    rank, leader = environment.get(ENV_GROUP_INDEX, ""), environment.get(ENV_GROUP_LEADER, "")
    if not rank.isdecimal() or int(rank) >= config.nodes:
        raise BadConfigError(
            f"{ENV_GROUP_INDEX}: {rank!r} is not a number below {config.nodes}; a LeaderWorkerSet sets it"
        )
    if not leader:
        raise BadConfigError(f"{ENV_GROUP_LEADER}: is not set; a LeaderWorkerSet sets it")
    return GroupPlace(nodes=config.nodes, rank=int(rank), leader=leader)
