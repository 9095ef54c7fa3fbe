"""Encoded documents by key, each with the tick at which it last changed: what a reader lacks is found by its tick."""

from __future__ import annotations

from collections.abc import Mapping


class Changes:
    """The latest documents. It holds no queue: a reader that is slow gets fewer and larger steps."""

    def __init__(self) -> None:
        self._documents: dict[str, tuple[int, bytes]] = {}

    def put(self, documents: Mapping[str, bytes], tick: int) -> None:
        """Take in all documents as they are at `tick`; missing ones are gone."""
        known = self._documents
        self._documents = {
            key: entry if (entry := known.get(key)) is not None and entry[1] == document else (tick, document)
            for key, document in documents.items()
        }

    def since(self, tick: int) -> list[bytes]:
        """Return the documents that changed after `tick`."""
        return [document for changed_at, document in self._documents.values() if changed_at > tick]

    def keys(self) -> frozenset[str]:
        """Return the keys of all documents."""
        return frozenset(self._documents)
