"""Which part of the old object a part of the new one is compared with.

Items of a list are the same item only by the keys of a list of type `map`; Kubernetes does not correlate others.
"""

from __future__ import annotations

from typing import Any


def map_keys(schema: dict[str, Any]) -> tuple[str, ...]:
    """The keys of a list of type `map`, else nothing."""
    if schema.get("x-kubernetes-list-type") != "map":
        return ()
    return tuple(schema.get("x-kubernetes-list-map-keys", ()))


def item_key(item: Any, keys: tuple[str, ...], schema: dict[str, Any]) -> dict[str, Any] | None:
    """The key of an item, with defaults; None when it has none."""
    if not keys or not isinstance(item, dict):
        return None
    properties = schema.get("items", {}).get("properties", {})
    return {key: item.get(key, properties.get(key, {}).get("default")) for key in keys}


def old_item(item: Any, old: Any, schema: dict[str, Any]) -> Any:
    """The item of the old list with the same key, or None."""
    keys = map_keys(schema)
    wanted = item_key(item, keys, schema)
    if wanted is None or not isinstance(old, list):
        return None
    return next((each for each in old if item_key(each, keys, schema) == wanted), None)


def old_entry(name: str, old: Any, schema: dict[str, Any]) -> Any:
    """The old value of an object's entry, or None."""
    if schema.get("x-kubernetes-map-type") == "atomic" or not isinstance(old, dict):
        return None
    return old.get(name)
