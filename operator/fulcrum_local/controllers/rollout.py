"""How a Deployment moves from old ReplicaSets to a new one. Pure: numbers in, numbers out.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/deployment/
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

from fulcrum_local.controllers.resources import Json

POD_TEMPLATE_HASH = "pod-template-hash"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that make no words, as in Kubernetes' names."""


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """One ReplicaSet: how many replicas it is to have, and how many of them are available."""

    name: str
    wanted: int
    available: int


def template_hash(template: Json, collisions: int) -> str:
    """A label value that stands for a Pod template."""
    text = json.dumps([template, collisions], sort_keys=True)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    letters = []
    for _ in range(10):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def without_hash(template: Json) -> Json:
    """A Pod template as the Deployment has it, without the label that its ReplicaSet adds."""
    metadata = template.get("metadata") or {}
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != POD_TEMPLATE_HASH}
    return {**template, "metadata": {**metadata, "labels": labels}}


def bounds(spec: Json) -> tuple[int, int]:
    """How many replicas more than wanted there may be, and how many fewer may be available."""
    wanted = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, wanted
    rolling = strategy.get("rollingUpdate") or {}
    surge = _resolved(rolling.get("maxSurge", "25%"), wanted, math.ceil)
    unavailable = _resolved(rolling.get("maxUnavailable", "25%"), wanted, math.floor)
    if surge == 0 and unavailable == 0:
        unavailable = 1  # otherwise nothing could ever move
    return surge, min(unavailable, wanted)


def _resolved(value: int | str, wanted: int, rounded: Any) -> int:
    if isinstance(value, str):
        return int(rounded(int(value.removesuffix("%")) * wanted / 100))
    return value


def step(spec: Json, new: Replicas, old: list[Replicas]) -> dict[str, int]:
    """The next size of every ReplicaSet that is to change; `old` is ordered from the oldest."""
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        return _recreate(spec.get("replicas", 1), new, old)
    return _grow(spec, new, old) or _shrink(spec, new, old)


def _recreate(wanted: int, new: Replicas, old: list[Replicas]) -> dict[str, int]:
    shrunk = {each.name: 0 for each in old if each.wanted}
    return shrunk or ({new.name: wanted} if new.wanted != wanted else {})


def _grow(spec: Json, new: Replicas, old: list[Replicas]) -> dict[str, int]:
    wanted = spec.get("replicas", 1)
    if new.wanted >= wanted:
        return {new.name: wanted} if new.wanted > wanted else {}
    surge, _ = bounds(spec)
    room = wanted + surge - new.wanted - sum(each.wanted for each in old)
    return {new.name: min(wanted, new.wanted + room)} if room > 0 else {}


def _shrink(spec: Json, new: Replicas, old: list[Replicas]) -> dict[str, int]:
    """Old replicas that are not available go first; of the others as many as availability allows."""
    _, unavailable = bounds(spec)
    least_available = spec.get("replicas", 1) - unavailable
    spare = sum(each.wanted for each in [new, *old]) - least_available - (new.wanted - new.available)
    if spare <= 0:
        return {}
    sizes = {each.name: each.wanted for each in old}
    for each in old:
        removed = min(spare, max(0, each.wanted - each.available))
        sizes[each.name] -= removed
        spare -= removed
    available = new.available + sum(each.available for each in old)
    spare = min(spare, available - least_available)
    for each in old:
        removed = min(max(0, spare), sizes[each.name])
        sizes[each.name] -= removed
        spare -= removed
    return {each.name: sizes[each.name] for each in old if sizes[each.name] != each.wanted}
