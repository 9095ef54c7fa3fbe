"""Two good clusters that are given new ratios while hostile InferenceClusters are written without a pause."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.controller.cluster import Cluster, Kubelet, eventually
from tests.controller.hostile import documents

from fulcrum.controller.kube import INFERENCE_CLUSTER
from fulcrum.kube import ApiError

AT_ONCE = 2
"""Writes of hostile objects at a time: the embedded API server shares the machine's cores with the operator."""
KEPT = 40
"""Hostile objects that are there at a time."""
CHANGES = 20


@dataclass(slots=True, kw_only=True)
class Found:
    """What was seen."""

    written: int = 0
    accepted: int = 0
    seconds: list[float] = field(default_factory=list)
    """From each change of a ratio to the labels of the workers, of both clusters."""

    @property
    def slowest_seconds(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        ordered = sorted(self.seconds)
        return (
            f"{self.written} hostile objects written, {self.accepted} accepted; {len(ordered)} ratios carried out: "
            f"median {ordered[len(ordered) // 2]:.2f} s, slowest {ordered[-1]:.2f} s"
        )


async def beside_hostile_objects(cluster: Cluster, objects: int, *, seed: int) -> Found:
    """Change the ratios of `cluster` and of one beside it CHANGES times, spread over the writing of `objects`."""
    other = Cluster(cluster.server, cluster.api, cluster.namespace)
    other.name = "d"
    found = Found()
    async with AsyncExitStack() as stack:
        for good in (cluster, other):
            await good.apply(workers=4, balance={"mode": "Manual", "ratio": {"prefill": 2, "decode": 2}})
            await stack.enter_async_context(Kubelet(good).run())
            await eventually(lambda good=good: is_available(good))  # type: ignore[misc]
        writing = asyncio.create_task(_write_all(cluster, objects, seed, found))
        try:
            for turn in range(CHANGES):
                while not writing.done() and found.written < objects * turn // CHANGES:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
                prefill = 1 + turn % 3
                found.seconds += await asyncio.gather(*(flipped(good, prefill) for good in (cluster, other)))
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
    return found


async def is_available(cluster: Cluster) -> bool:
    """Whether the condition Available is True."""
    return bool((await cluster.condition("Available"))["status"] == "True")


async def flipped(cluster: Cluster, prefill: int) -> float:
    """Ask for a ratio; return the seconds until the workers have it."""
    began = time.monotonic()
    await cluster.patch({"spec": {"balance": {"ratio": {"prefill": prefill, "decode": 4 - prefill}}}})

    async def carried_out() -> bool:
        return sum(role == "prefill" for role in (await cluster.roles()).values()) == prefill

    await eventually(carried_out)
    return time.monotonic() - began


async def _write_all(cluster: Cluster, objects: int, seed: int, found: Found) -> None:
    """Write every hostile object; the oldest are deleted, so that their number stays bounded."""
    specs = enumerate(documents(seed, objects))
    there: deque[str] = deque()

    async def write() -> None:
        for number, spec in specs:
            await _write(cluster, f"h{number}", spec, found, there)

    await asyncio.gather(*(write() for _ in range(AT_ONCE)))


async def _write(cluster: Cluster, name: str, spec: dict[str, Any], found: Found, there: deque[str]) -> None:
    metadata = {"name": name, "namespace": cluster.namespace}
    body = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": metadata, "spec": spec}
    found.written += 1
    try:
        await cluster.api.create(INFERENCE_CLUSTER.collection(cluster.namespace), body)
    except ApiError as error:
        if error.code >= 500:
            raise
        return
    except ValueError:
        return  # it cannot even be sent
    found.accepted += 1
    there.append(name)
    if len(there) > KEPT:
        await cluster.api.delete(INFERENCE_CLUSTER.path((cluster.namespace, there.popleft())))
