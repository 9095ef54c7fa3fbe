"""How fast workers were measured to be, from the ConfigMaps that `spec.pools[].profile` names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fulcrum.api.messages import shortened
from fulcrum.api.types import InferenceClusterSpec, Parallelism, Pool
from fulcrum.capacity.profile import Profile, parse_profile, same_worker
from fulcrum.controller.config_maps import ConfigMaps, Place, UnusableError
from fulcrum.controller.kube import Kube


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProfiles:
    """The profiles of one cluster's pools."""

    known: Mapping[str, Profile] = field(default_factory=dict)
    """By pool; without pools that name none, or one that cannot be used."""
    problems: tuple[str, ...] = ()
    """What is wrong with the others: field, fault and fix of each."""


class Profiles:
    """The profiles that clusters name."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        made_from = "what `fulcrum capacity --export` writes"
        self._documents = ConfigMaps(kube, parse_profile, create=made_from, clock=clock)

    async def of(self, namespace: str, spec: InferenceClusterSpec) -> PoolProfiles:
        """Return the profiles that the pools of a cluster in `namespace` name, and why others cannot be used."""
        places = {
            pool.name: Place(namespace, pool.profile.config_map, pool.profile.key)
            for pool in spec.pools
            if pool.profile is not None
        }
        documents = await self._documents.read(places.values())
        known: dict[str, Profile] = {}
        problems: list[str] = []
        for pool in (pool for pool in spec.pools if pool.name in places):
            found = documents[places[pool.name]]
            why = str(found) if isinstance(found, UnusableError) else _mismatch(found, spec, pool)
            if why is not None:
                problems.append(f"spec.pools[] {pool.name}, profile: {why}")
            elif isinstance(found, Profile):
                known[pool.name] = found
        return PoolProfiles(known=known, problems=tuple(problems))


def _mismatch(profile: Profile, spec: InferenceClusterSpec, pool: Pool) -> str | None:
    """Return why a profile is none of a pool's workers; None where it is."""
    meant = pool.parallelism
    if profile.model == spec.model.name and same_worker(
        profile,
        accelerator_name=pool.accelerator,
        tensor=meant.tensor,
        pipeline=meant.pipeline,
        data=meant.data,
    ):
        return None
    measured = f"{profile.model} on {profile.accelerator} ({_said(profile)})"
    return (
        f"the profile is of {shortened(measured)}, and workers of the pool serve {spec.model.name} on "
        f"{pool.accelerator} ({_said(meant)}); name a profile of such workers."
    )


def _said(parallelism: Profile | Parallelism) -> str:
    ranks = f", data {parallelism.data}" if parallelism.data > 1 else ""
    return f"tensor {parallelism.tensor}, pipeline {parallelism.pipeline}{ranks}"
