"""`fulcrum plan --host-memory --pool`: what a trace's prompts find in KV tiers, by the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.quantities import number_of_bytes
from fulcrum.cli.kv_links import GIGA
from fulcrum.simulation.workload import Workload

_START_SECONDS: Final = 60.0
_TURN_SECONDS: Final = 600.0
"""Least time between turns of the simulated planner: layout and rate are the plan's, so there is little to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTiersAsked:
    """Tiers that every worker of the plan has."""

    offload: Mapping[str, Any]
    """As `spec.engine.kvCache.offload` has it."""
    host_link: float
    pool_link: float
    """GB/s of each worker's links."""
    load: Workload
    """Requests with the ids of their prefixes."""

    def add_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """Give the InferenceCluster of `document` these tiers; returns it."""
        document["spec"]["engine"]["kvCache"]["offload"] = dict(self.offload)
        return document

    def prefix_hit(self, document: dict[str, Any], *, rate: float) -> float:
        """Return the share of the prompt tokens that the cluster of `document` need not compute at `rate` requests/s.

        The document has these tiers. What its KV caches hold counts, too. The production code serves the requests.
        """
        from fulcrum.api.objects import load_inference_cluster
        from fulcrum.load.demand import promised
        from fulcrum.simulation.engine import simulate
        from fulcrum.simulation.from_spec import cluster_model
        from fulcrum.simulation.outcome import Outcome
        from fulcrum.simulation.policies import Ours

        spec = load_inference_cluster(document).spec
        load = self.load.scaled(rate * self.load.duration_seconds / len(self.load))
        cluster = cluster_model(
            spec,
            profiles={},
            start_seconds=_START_SECONDS,
            host_bytes_per_second=self.host_link * GIGA,
            pool_bytes_per_second=self.pool_link * GIGA,
        )
        result = simulate(load, cluster, Ours(spec, least_turn_seconds=_TURN_SECONDS), slo=promised(spec))
        served = result.outcome == Outcome.SERVED
        prompts = float(load.prompt_tokens[served].sum())
        return max(1 - float(result.computed_tokens[served].sum()) / prompts, 0.0) if prompts else 0.0


def tiers_of(
    host_memory: str | None, pool: str | None, *, load: Workload | None, host_link: float, pool_link: float
) -> KvTiersAsked | None:
    """Return the tiers of these options; None: there are none. Raises click.UsageError."""
    if host_memory is None:
        if pool is not None:
            raise click.UsageError("--pool lies below host memory: give --host-memory, too")
        return None
    if load is None or load.prefix_ids is None or not load.duration_seconds:
        raise click.UsageError(
            "--host-memory: which prompts begin alike is only known of a trace with prefixes (Mooncake, .jsonl)"
        )
    offload: dict[str, Any] = {"hostMemory": _amount("--host-memory", host_memory)}
    if pool is not None:
        claim, _, size = pool.partition("=")
        if not claim or not size:
            raise click.UsageError(f"--pool {pool}: write the claim and its size, such as kv=2Ti")
        offload["pool"] = {"persistentVolumeClaim": claim, "size": _amount("--pool", size)}
    return KvTiersAsked(offload=offload, host_link=host_link, pool_link=pool_link, load=load)


def _amount(option: str, text: str) -> str:
    try:
        number_of_bytes(text)
    except InvalidValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    return text
