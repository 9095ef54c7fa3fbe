"""Whether all workers of a cluster can mount its KV pool's claim."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.kube import CLAIM, ApiFailure, Kube

_SHARED: Final = "ReadWriteMany"
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class _Known:
    modes: tuple[str, ...] | None
    read_at: float


class KvClaims:
    """Reads the claims, each now and then."""

    def __init__(self, kube: Kube, *, resync_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    async def refusal(self, namespace: str, spec: InferenceClusterSpec) -> str | None:
        """Return why workers could not share the pool; None where they can, or where nothing is known of the claim.

        A claim that is not there, or that the operator may not read, keeps no worker from being made: the scheduler
        says what is wrong with it.
        """
        claim = spec.engine.kv_cache.pool_claim
        if claim is None or may_share_node(spec):
            return None
        modes = await self._modes(namespace, claim)
        if modes is None or _SHARED in modes:
            return None
        return (
            f"engine.kvCache.offload.pool.persistentVolumeClaim: claim {claim} is {' and '.join(modes)}, "
            f"and workers may be on several nodes; use a claim with access mode {_SHARED}, or keep all workers on one "
            f"node (nodeSelector {_HOSTNAME} in spec.pools[].template)"
        )

    async def _modes(self, namespace: str, claim: str) -> tuple[str, ...] | None:
        key, now = (namespace, claim), self._clock()
        known = self._known.get(key)
        if known is None or now - known.read_at >= self._resync_seconds:
            try:
                live = await self._kube.get(CLAIM, namespace, claim)
            except ApiFailure:
                live = None
            modes = tuple((live.get("spec") or {}).get("accessModes") or ()) if live is not None else None
            known = self._known[key] = _Known(modes, now)
        return known.modes


def may_share_node(spec: InferenceClusterSpec) -> bool:
    """Report whether all workers are on one node: there is one at most, or their pools name the same node."""
    pools = [pool for pool in spec.pools if pool.workers.max > 0]
    if sum(pool.workers.max * pool.nodes for pool in pools) <= 1:
        return True
    nodes = {_node(pool.template) for pool in pools}
    return len(nodes) == 1 and None not in nodes


def _node(template: dict[str, Any]) -> str | None:
    pod = template.get("spec") or {}
    named = pod.get("nodeName") or (pod.get("nodeSelector") or {}).get(_HOSTNAME)
    return str(named) if named else None
