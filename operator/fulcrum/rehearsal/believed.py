"""The cluster that plays run on, as the operator knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fulcrum.api.gateway import PairsReport
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.measurements import learnt_transfers
from fulcrum.simulation.cluster import ClusterModel, Links
from fulcrum.simulation.from_spec import cluster_model


def both_ways(pairs: Iterable[PairsReport]) -> dict[tuple[str, str], TransferCost]:
    """Return what gateways learnt of KV transfers by source and target pool; an unknown way is as its way back."""
    learnt = learnt_transfers(pairs)
    return {(target, source): cost for (source, target), cost in learnt.items()} | learnt


def believed(
    spec: InferenceClusterSpec,
    *,
    speeds: Mapping[str, WorkerSpeed],
    start_seconds: float,
    pairs: Sequence[PairsReport],
    gateways: int,
    model: ModelFacts | None,
) -> ClusterModel | None:
    """Return the pools that may have workers, and KV transfers as gateways have learnt them, for both ways alike.

    `speeds` by pool; `start_seconds` from the creation of a Pod to its readiness; `pairs` of each gateway that
    answered; `model`: None is what its name says. The answer is None where the speed of a pool that may have
    workers is not known, or the simulator cannot play such a cluster.
    """
    if any(pool.workers.max > 0 and pool.name not in speeds for pool in spec.pools):
        return None
    try:
        cluster = cluster_model(
            spec, profiles=speeds, start_seconds=start_seconds, model=model, links=Links(pairs=both_ways(pairs))
        )
    except ValueError:  # no pool may have workers, or offloaded KV of unknown size
        return None
    return replace(cluster, gateways=max(gateways, 1))
