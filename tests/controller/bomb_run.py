"""A cluster whose Prometheus, agents and gateways all answer with bombs, beside a good one that is given new ratios."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tests.controller.cluster import Cluster, Kubelet, Operator, eventually
from tests.controller.hostile_run import flipped, is_available
from tests.controller.test_ticks import make_gateway_pod
from tests.telemetry.test_hostile_upstreams import HOSTILE, Write, upstream

from fulcrum.api.names import PORT_AGENT, PORT_GATEWAY_INSIDE

AGENTS, GATEWAYS = 16, 3
KINDS = ("gzip", "gzip unsaid", "endless", "endless chunks", "too long", "nested")
UPSTREAMS = ("prometheus", "agent", "gateway")
BUSY = {"mode": "Auto", "forecast": {"interval": "5s", "seasonality": "1h"}}


@dataclass(slots=True, kw_only=True)
class Found:
    """What was seen."""

    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bombs, by who sent them and their kind."""
    seconds: list[float] = field(default_factory=list)
    """From each change of the good cluster's ratio to the labels of its workers."""
    peak_bytes: int = 0
    """Largest resident memory of the operator so far."""

    @property
    def everyone_was_asked(self) -> bool:
        return all(self.sent[who, kind] for who in UPSTREAMS for kind in KINDS)

    def __str__(self) -> str:
        ordered = sorted(self.seconds)
        return (
            f"{self.sent.total()} bombs, the operator takes {self.peak_bytes / 2**20:.0f} MiB; {len(ordered)} ratios "
            f"beside it: median {ordered[len(ordered) // 2]:.2f} s, slowest {ordered[-1]:.2f} s"
        )


async def beside_bombs(cluster: Cluster, operator: Operator, *, changes: int) -> Found:
    """Change the ratio of `cluster` `changes` times at least, and until each upstream has sent each kind of bomb."""
    found, writes = Found(), {kind: HOSTILE[kind]() for kind in KINDS}
    bad = Cluster(cluster.server, cluster.api, cluster.namespace)
    bad.name = "bad"
    async with AsyncExitStack() as stack:
        await cluster.apply(workers=4, balance={"mode": "Manual", "ratio": {"prefill": 2, "decode": 2}})
        await stack.enter_async_context(Kubelet(cluster).run())
        await eventually(lambda: is_available(cluster))
        port = await stack.enter_async_context(upstream(_in_turn("prometheus", writes, found)))
        await bad.apply(
            workers=AGENTS, balance=BUSY, metrics={"prometheus": {"url": f"http://127.0.0.1:{port}"}},
            pools=[{"name": "p", "accelerator": "cpu", "workers": {"min": AGENTS, "max": AGENTS}}],
        )  # fmt: skip

        async def all_made() -> bool:
            return len(await bad.pods()) == AGENTS and await bad.deployment() is not None

        await eventually(all_made)
        for name in await bad.pods():
            await bad.set_pod_status(name)
        for pod in (await bad.pods()).values():
            bombs = _in_turn("agent", writes, found)
            await stack.enter_async_context(upstream(bombs, pod["status"]["podIP"], PORT_AGENT))
        for number in range(GATEWAYS):
            address = await make_gateway_pod(bad, f"bad-gateway-{number}")
            await stack.enter_async_context(upstream(_in_turn("gateway", writes, found), address, PORT_GATEWAY_INSIDE))
        await bad.bring_up_gateway()
        for turn in itertools.count():
            found.seconds.append(await flipped(cluster, 1 + turn % 3))
            if turn + 1 >= changes and found.everyone_was_asked:
                break
        found.peak_bytes = operator.peak_bytes()
    return found


def _in_turn(who: str, writes: dict[str, Write], found: Found) -> Write:
    """Each answer is a bomb of the next kind."""
    kinds: Iterator[str] = itertools.cycle(KINDS)

    async def write(writer: asyncio.StreamWriter) -> None:
        kind = next(kinds)
        found.sent[who, kind] += 1
        await writes[kind](writer)

    return write
