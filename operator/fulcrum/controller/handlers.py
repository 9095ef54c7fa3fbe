"""kopf's part: InferenceClusters that come, change and go. What is under them is watched by `caches`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import kopf

from fulcrum.api.names import GROUP, PLURAL, VERSION
from fulcrum.controller.cluster_watches import ClusterKey
from fulcrum.controller.queue import Wake

_MOST_TOLD: Final = 10_000
"""Clusters of which is remembered what was told; those that are gone are among them."""


class _Retries:
    """Waits between attempts, without end: an API server that is away comes back, and then we are still here."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.1, 0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


def make_settings(*, all_namespaces: bool) -> kopf.OperatorSettings:
    """Return kopf's settings; see `docs/concepts/control-loop.md` for the reasons."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 15
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _Retries()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 301
    settings.watching.reconnect_backoff = 0.1
    # Watching CRDs and namespaces needs rights beyond a namespace.
    settings.scanning.disabled = not all_namespaces
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.process.ultimate_exiting_timeout = 30
    return settings


def make_registry(enqueue: Callable[[ClusterKey, Wake], None]) -> kopf.OperatorRegistry:
    """Return handlers that call `enqueue` with the cluster that an event is about, and whether it changed."""
    registry = kopf.OperatorRegistry()

    told: dict[tuple[str, str], tuple[object, ...]] = {}

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def on_cluster(
        type: str | None,  # noqa: A002 - kopf's
        name: str,
        namespace: str | None,
        meta: kopf.Meta,
        **_: Any,
    ) -> None:
        key = (namespace or "", name)
        state = (*map(meta.get, ("uid", "generation", "deletionTimestamp")), dict(meta.labels), dict(meta.annotations))
        if type == "MODIFIED" and told.get(key) == state:
            return  # its status alone, which `caches` look at
        if len(told) >= _MOST_TOLD:
            told.clear()
        told[key] = state
        # Without a type it stands in a list, which kopf reads again now and then: the whole fleet, all at once.
        enqueue(key, Wake.TIMER if type is None else Wake.EVENT)

    @kopf.on.login(registry=registry)
    def on_login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**kwargs) or kopf.login_with_service_account(**kwargs)

    return registry
