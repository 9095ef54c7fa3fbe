"""The server's own finalizers: a namespace goes after its content, a CRD after its objects."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fulcrum_local.apiserver import definitions
from fulcrum_local.apiserver.deleting import DeleteOptions, Deleter
from fulcrum_local.apiserver.errors import ApiError
from fulcrum_local.apiserver.kinds import Kind, Registry
from fulcrum_local.apiserver.store import Change, Store, Stored

logger = logging.getLogger(__name__)
_NAMESPACE_FINALIZER: Final = "kubernetes"
_RECHECK_SECONDS: Final = 0.2


class Finalizing:
    """Empties namespaces and CRDs that are being deleted; level-triggered, so it also finishes after a restart."""

    def __init__(self, store: Store, registry: Registry, deleter: Deleter) -> None:
        self._store, self._registry, self._deleter = store, registry, deleter
        self._wake = asyncio.Event()
        for storage in ("namespaces", definitions.STORAGE):
            store.listen(storage, self._note)
        self._wake.set()

    def _note(self, change: Change) -> None:
        if change.new.obj["metadata"].get("deletionTimestamp"):
            self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self.step():
                await asyncio.sleep(_RECHECK_SECONDS)  # other controllers remove finalizers of the content
                self._wake.set()

    def step(self) -> bool:
        """One pass; False when something that is being deleted still has content."""
        done = True
        for stored in [*self._store.scan("namespaces"), *self._store.scan(definitions.STORAGE)]:
            if not stored.obj["metadata"].get("deletionTimestamp"):
                continue
            is_namespace = stored.obj["kind"] == "Namespace"
            try:
                done &= self._empty_namespace(stored) if is_namespace else self._empty_definition(stored)
            except ApiError as error:
                logger.warning("finalizing_failed", extra={"object_name": stored.key[1], "error": str(error)})
                done = False
        return done

    def _empty_namespace(self, namespace: Stored) -> bool:
        name = namespace.key[1]
        storages = self._store.storages_in(name)
        kinds = {kind.storage: kind for kind in self._registry if kind.namespaced}
        for storage in storages:
            self._delete_unmarked(kinds[storage], name)
        if self._store.storages_in(name):
            return False
        finalizers = [entry for entry in namespace.obj["spec"].get("finalizers", ()) if entry != _NAMESPACE_FINALIZER]
        current = self._store.get("namespaces", "", name)
        if current is None:
            return True
        if finalizers or current.obj["metadata"].get("finalizers"):
            if finalizers != current.obj["spec"].get("finalizers"):
                spec = {**current.obj["spec"], "finalizers": finalizers}
                self._store.put("namespaces", {**current.obj, "metadata": dict(current.obj["metadata"]), "spec": spec})
            return False
        self._store.remove("namespaces", current.key)
        return True

    def _empty_definition(self, definition: Stored) -> bool:
        crd = definition.obj
        if definitions.FINALIZER not in crd["metadata"].get("finalizers", ()):
            return True
        storage = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
        kind = next((kind for kind in self._registry if kind.storage == storage), None)
        if kind is not None:
            self._delete_unmarked(kind, "")
        if self._store.count(storage):
            return False
        metadata = dict(crd["metadata"])
        metadata["finalizers"] = [name for name in metadata["finalizers"] if name != definitions.FINALIZER]
        if metadata["finalizers"]:
            self._store.put(definitions.STORAGE, {**crd, "metadata": metadata})
        else:
            self._store.remove(definitions.STORAGE, definition.key)
        return True

    def _delete_unmarked(self, kind: Kind, namespace: str) -> None:
        unmarked = [
            stored
            for stored in self._store.scan(kind.storage, namespace)
            if not stored.obj["metadata"].get("deletionTimestamp")
        ]
        self._deleter.delete_collection(kind, unmarked, DeleteOptions())
