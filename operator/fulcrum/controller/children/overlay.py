"""Lay a user's Pod template over a generated Pod, the way a strategic merge patch would."""

from __future__ import annotations

import copy
from typing import Any, Final

from fulcrum.controller.children.owner import Manifest

MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose elements are merged by a key; other lists are replaced as a whole."""
WHOLE_ELEMENTS: Final = frozenset({"env", "volumes"})
"""A variable or a volume has one source: naming it replaces ours instead of adding a second one."""


def overlay(base: Manifest, patch: Manifest) -> Manifest:
    """Return `base` with `patch` laid over it: maps merge, null removes, keyed lists merge by their key."""
    merged = copy.deepcopy(base)
    for key, value in patch.items():
        current = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = overlay(current if isinstance(current, dict) else {}, value)
        elif isinstance(value, list) and isinstance(current, list) and key in MERGE_KEYS:
            merged[key] = _merge_lists(current, value, key)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_lists(base: list[Any], patch: list[Any], list_name: str) -> list[Any]:
    key = MERGE_KEYS[list_name]
    places = {item[key]: index for index, item in enumerate(base) if isinstance(item, dict) and key in item}
    merged = list(base)
    for item in patch:
        index = places.get(item.get(key)) if isinstance(item, dict) else None
        if index is None:
            merged.append(copy.deepcopy(item))
        elif list_name in WHOLE_ELEMENTS:
            merged[index] = copy.deepcopy(item)
        else:
            merged[index] = overlay(merged[index], item)
    return merged
