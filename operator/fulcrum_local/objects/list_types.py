"""Which lists and maps of a kind are merged by server-side apply, and how: the topology of its fields."""

from __future__ import annotations

import json
from typing import Any

from fulcrum_local.objects.builtin_shapes import shape_of

Schema = dict[str, Any]
Grouped = dict[str, list[Any]]


class ListTypes:
    """One node of the topology; `entry` and `items` lead to the nodes below."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Schema) -> None:
        """`schema` is a structural schema, or a part of one; `{}` is a value that nothing is known of."""
        self._schema = schema

    @classmethod
    def for_builtin(cls, kind: str) -> ListTypes:
        """The topology of a built-in kind such as `Deployment`."""
        return cls(shape_of(kind))

    @classmethod
    def for_schema(cls, open_api_v3_schema: Schema) -> ListTypes:
        """The topology of a custom resource by its schema; metadata is that of every object."""
        metadata = shape_of("")["properties"]["metadata"]
        return cls(
            {**open_api_v3_schema, "properties": {**open_api_v3_schema.get("properties", {}), "metadata": metadata}}
        )

    def entry(self, name: str) -> ListTypes:
        """The node of an object's entry."""
        properties = self._schema.get("properties", {})
        additional = self._schema.get("additionalProperties")
        return ListTypes(properties.get(name, additional if isinstance(additional, dict) else {}))

    @property
    def has_free_keys(self) -> bool:
        """Whether the entries of an object are data (labels), not declared fields."""
        return bool(
            self._schema.get("additionalProperties") or self._schema.get("x-kubernetes-preserve-unknown-fields")
        )

    @property
    def items(self) -> ListTypes:
        """The node of a list's items."""
        return ListTypes(self._schema.get("items", {}))

    def is_granular_map(self, value: Any) -> bool:
        """Whether an object is merged entry by entry, not replaced."""
        return isinstance(value, dict) and self._schema.get("x-kubernetes-map-type") != "atomic"

    def is_keyed_list(self, value: Any) -> bool:
        """Whether a list is merged item by item (list type `map` or `set`), not replaced."""
        return isinstance(value, list) and self._schema.get("x-kubernetes-list-type") in {"map", "set"}

    def item_element(self, item: Any) -> str:
        """What tells an item from others, as fieldsV1 writes it: `k:{"name":"x"}` or `v:"x"`."""
        if self._schema["x-kubernetes-list-type"] == "set" or not isinstance(item, dict):
            return "v:" + json.dumps(item, sort_keys=True, separators=(",", ":"))
        properties = self._schema.get("items", {}).get("properties", {})
        key = {}
        for name in self._schema.get("x-kubernetes-list-map-keys", ()):
            value = item.get(name, properties.get(name, {}).get("default"))
            if value is not None:
                key[name] = value
        return "k:" + json.dumps(key, sort_keys=True, separators=(",", ":"))

    def grouped(self, items: list[Any]) -> Grouped:
        """Items by what tells them apart, in order; more than one item under a key is possible in stored objects."""
        groups: Grouped = {}
        for item in items:
            groups.setdefault(self.item_element(item), []).append(item)
        return groups
