"""How fast workers were measured to be, from the ConfigMaps that `spec.pools[].profile` names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from fulcrum.api.messages import names_of, shortened
from fulcrum.api.pool_types import PoolProfile
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.capacity.profile import Profile, ProfileError, parse_profile, same_worker
from fulcrum.controller.kube import CONFIG_MAP, ApiFailure, Kube
from fulcrum.kube import ApiError

READ_SECONDS: Final = 60.0
"""How long what a ConfigMap held is used before it is read again."""
ANSWER_SECONDS: Final = 5.0
"""Longest wait of a tick for ConfigMaps: what else it decides must not wait for a prior."""
_UNUSED_SECONDS: Final = 600.0
"""How long what is known of a ConfigMap is kept that no cluster asks for: longer than any waits between two ticks."""


class _UnusableError(Exception):
    """No profile can be had from a ConfigMap. Says where, why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProfiles:
    """The profiles of one cluster's pools."""

    known: Mapping[str, Profile] = field(default_factory=dict)
    """By pool; without pools that name none, or one that cannot be used."""
    problems: tuple[str, ...] = ()
    """What is wrong with the others: field, fault and fix of each."""


@dataclass(frozen=True, slots=True)
class _Known:
    found: Profile | _UnusableError
    read_at: float


class Profiles:
    """Reads the ConfigMaps, each once a minute at most."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[tuple[str, str, str], _Known] = {}
        """By namespace, name and key."""

    async def of(self, namespace: str, spec: InferenceClusterSpec) -> PoolProfiles:
        """Return the profiles that the pools of a cluster in `namespace` name, and why others cannot be used."""
        named = {pool.name: (pool, pool.profile) for pool in spec.pools if pool.profile is not None}
        if not named:
            return PoolProfiles()
        now = self._clock()
        self._known = {key: each for key, each in self._known.items() if now - each.read_at < _UNUSED_SECONDS}
        await asyncio.gather(*(self._refresh(*key) for key in {_key(namespace, each) for _, each in named.values()}))
        known: dict[str, Profile] = {}
        problems: list[str] = []
        for pool, profile in named.values():
            found = self._known[_key(namespace, profile)].found
            why = str(found) if isinstance(found, _UnusableError) else _mismatch(found, spec, pool)
            if why is not None:
                problems.append(f"spec.pools[] {pool.name}, profile: {why}")
            elif isinstance(found, Profile):
                known[pool.name] = found
        return PoolProfiles(known=known, problems=tuple(problems))

    async def _refresh(self, namespace: str, name: str, key: str) -> None:
        now, place = self._clock(), (namespace, name, key)
        before = self._known.get(place)
        if before is not None and now - before.read_at < READ_SECONDS:
            return
        found: Profile | _UnusableError
        try:
            found = await self._read(namespace, name, key)
        except _UnusableError as error:
            found = error
        except (ApiFailure, TimeoutError) as error:
            # No answer is no news: what was read before stands.
            said = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
            unread = _UnusableError(f"ConfigMap {namespace}/{name} cannot be read ({said}); it is tried again.")
            found = before.found if before is not None else unread
        self._known[place] = _Known(found, now)

    async def _read(self, namespace: str, name: str, key: str) -> Profile:
        where = f"ConfigMap {namespace}/{name}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await self._kube.get(CONFIG_MAP, namespace, name)
        except ApiError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            raise _UnusableError(
                f"{where} may not be read ({shortened(str(error))}); let the operator's service account get it: apply "
                "the roles of this release (docs/operations/security.md)."
            ) from error
        if found is None:
            raise _UnusableError(
                f"{where} does not exist; create it from what `fulcrum capacity --export` writes, or remove the field."
            )
        values = found.get("data")
        values = values if isinstance(values, dict) else {}
        if not isinstance(document := values.get(key), str):
            has = f"it has {names_of(sorted(map(str, values)))}" if values else "it has none"
            raise _UnusableError(f"{where} has no key {key} ({has}); add it, or correct the field `key`.")
        try:
            return parse_profile(document)
        except ProfileError as error:
            raise _UnusableError(f"{where}, key {key}: {shortened(str(error))}; correct it.") from None


def _key(namespace: str, profile: PoolProfile) -> tuple[str, str, str]:
    return namespace, profile.config_map, profile.key


def _mismatch(profile: Profile, spec: InferenceClusterSpec, pool: Pool) -> str | None:
    """Return why a profile is none of a pool's workers; None where it is."""
    tensor, pipeline = pool.parallelism.tensor, pool.parallelism.pipeline
    if profile.model == spec.model.name and same_worker(
        profile, accelerator_name=pool.accelerator, tensor=tensor, pipeline=pipeline
    ):
        return None
    measured = f"{profile.model} on {profile.accelerator} (tensor {profile.tensor}, pipeline {profile.pipeline})"
    return (
        f"the profile is of {shortened(measured)}, and workers of the pool serve {spec.model.name} on "
        f"{pool.accelerator} (tensor {tensor}, pipeline {pipeline}); name a profile of such workers."
    )
