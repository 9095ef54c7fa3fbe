"""What is known of the models that clusters serve: by the tables, else from the ConfigMap of `spec.model.config`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, KvCacheDtype
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name, parse_facts
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.config_maps import ConfigMaps, Place, UnusableError
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import Kube
from fulcrum.decide import ObservedWorker, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model of one cluster."""

    facts: ModelFacts
    source: str = ""
    """Where that is from beside the tables; empty: nowhere."""
    problem: str | None = None
    """What is wrong with the ConfigMap: field, fault and fix."""


class ModelConfigs:
    """The config.json files that clusters name."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        made_from = "the config.json of the model's repository"
        self._documents = ConfigMaps(kube, parse_facts, create=made_from, clock=clock)

    async def of(self, namespace: str, spec: InferenceClusterSpec) -> ServedModel:
        """Return what is known of the model of a cluster in `namespace`. What the tables know is not asked for."""
        name, named = spec.model.name, spec.model.config
        known = facts_of_name(name)
        if named is None or known.complete:
            return ServedModel(facts=known)
        place = Place(namespace, named.config_map, named.key)
        found = (await self._documents.read((place,)))[place]
        if isinstance(found, UnusableError):
            return ServedModel(facts=known, problem=f"spec.model.config: {found}")
        source = f"the model is described by ConfigMap {named.config_map}"
        return ServedModel(facts=known.or_else(found.named(name)), source=source)


def refused_models(
    spec: InferenceClusterSpec,
    installation: Installation,
    *,
    dtype: KvCacheDtype | None,
    model: ModelFacts | None,
    problem: str | None,
    standing: Iterable[ObservedWorker],
) -> dict[str, Refusal]:
    """Return, by pool, why its workers are not made: no engine could serve the model, or what it needs is not known.

    `problem` is that of the config.json, which holds up new revisions alone. Where workers of the revision stand
    (`standing`), others are made as they are.
    """
    stand = {worker.pool for worker in standing}
    refused = refused_engines(spec, installation, dtype, model)
    if not stand.isdisjoint(refused):
        by_name = refused_engines(spec, installation, dtype)
        refused = {pool: why for pool, why in refused.items() if pool not in stand or pool in by_name}
    if problem is None or stand or (model is not None and model.kind is not None):
        return refused
    waits = Refusal(message=problem, reason=Reason.MODEL_CONFIG_UNUSABLE)
    return {pool.name: waits for pool in spec.pools if pool.workers.max > 0} | refused
