"""Resources of the API and their URL paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for a cluster-scoped object) and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of the API."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, key: Key | None = None, subresource: str = "") -> str:
        """The URL path of an object, or of the collection over all namespaces."""
        parts = ["", "apis" if "/" in self.api_version else "api", self.api_version]
        if key is None:
            return "/".join([*parts, self.plural])
        namespace, name = key
        if self.namespaced:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, name, subresource]).rstrip("/")

    def collection(self, namespace: str | None) -> str:
        """The URL path of the collection in a namespace, or (None) in all of them."""
        return self.path() if namespace is None else self.path((namespace, ""))


def key_of(obj: Json) -> Key:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
