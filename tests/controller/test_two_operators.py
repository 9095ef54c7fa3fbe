"""Two operator processes and one API server: one acts at any time, whatever happens to the other."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from datetime import datetime

import pytest
from tests.controller.cluster import Cluster, Operator, eventually
from tests.machine import deadline_seconds

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import EVENT, LEASE

pytestmark = pytest.mark.integration

LEASE_SECONDS = 8
"""A machine that is busy for some seconds must not lose the Lease for a test's holder."""
LONG_LEASE_SECONDS = round(deadline_seconds(60))
"""Of which nobody waits for the end."""


class Pair:
    """Two operators of one namespace that share a Lease there."""

    def __init__(self, cluster: Cluster, *, lease_seconds: int = LEASE_SECONDS) -> None:
        self.cluster = cluster
        times = ("--lease-duration", f"{lease_seconds}s", "--renew-deadline", f"{0.75 * lease_seconds:g}s")
        arguments = ("--namespace", cluster.namespace, *times, "--retry-period", "400ms")
        self.operators = {name: Operator(cluster.server, *arguments, pod=name) for name in ("one", "two")}

    async def lease(self) -> Manifest:
        lease = await self.cluster.kube.get(LEASE, "fulcrum-system", "fulcrum-operator")
        spec: Manifest = (lease or {"spec": {}})["spec"]
        return spec

    async def holder(self) -> str:
        return str((await self.lease()).get("holderIdentity") or "")

    async def led_by(self, name: str) -> None:
        async def leads() -> bool:
            return await self.holder() == name

        await eventually(leads)

    async def waits(self, operator: Operator) -> None:
        async def says_so() -> bool:
            return "leader_is_another" in operator.log.read_text()

        await eventually(says_so)

    async def flip_to(self, prefill: int, role: str, worker: str, *, by: str) -> None:
        """Ask for another ratio, and see who flips the worker."""
        await self.cluster.patch({"spec": {"balance": {"ratio": {"prefill": prefill, "decode": 4 - prefill}}}})

        async def flipped() -> bool:
            return (await self.cluster.roles())[worker] == role

        await eventually(flipped)

        async def said() -> bool:
            return (await self.acted()).get(by) == 1

        await eventually(said)

    async def acted(self) -> dict[str, int]:
        """Decisions so far, by who made them."""
        counts: dict[str, int] = {}
        for event in await self.cluster.kube.list(EVENT, self.cluster.namespace, {}):
            counts[event["reportingInstance"]] = counts.get(event["reportingInstance"], 0) + 1
        return counts


def writes(operator: Operator) -> float:
    """Writing calls that a process made, other than for its Lease."""
    return sum(
        float(value)
        for labels, value in re.findall(
            r"^fulcrum_operator_api_calls_total\{(.*)\} (\S+)$", operator.metrics(), re.MULTILINE
        )
        if not re.search(r'verb="(get|list)"|kind="Lease"', labels)
    )


async def test_the_second_one_takes_over_when_the_first_is_killed(cluster: Cluster) -> None:
    pair = Pair(cluster)
    one, two = pair.operators["one"], pair.operators["two"]
    with one:
        await pair.led_by("one")
        with two:
            await pair.waits(two)
            await cluster.apply()
            await cluster.settle()
            assert writes(one) > 0
            assert writes(two) == 0
            assert "fulcrum_operator_leader 0.0" in two.metrics()
            assert set(await pair.acted()) == {"one"}
            one.kill()
            renewed = datetime.fromisoformat((await pair.lease())["renewTime"])
            await pair.led_by("two")
            lasted = (datetime.fromisoformat((await pair.lease())["acquireTime"]) - renewed).total_seconds()
            print(f"the last renewal -> the other leads, seconds: {lasted:.2f} (lease {LEASE_SECONDS} s)")
            # Never before the Lease is over, and soon after.
            assert LEASE_SECONDS <= lasted < LEASE_SECONDS + deadline_seconds(LEASE_SECONDS)

            async def leads() -> bool:
                return "fulcrum_operator_leader 1.0" in two.metrics()

            await eventually(leads)
            before = writes(two)
            await pair.flip_to(1, "decode", "c-p-1", by="two")
            assert writes(two) > before


async def test_a_handover_is_quick_when_the_first_one_is_asked_to_stop(cluster: Cluster) -> None:
    pair = Pair(cluster, lease_seconds=LONG_LEASE_SECONDS)
    one, two = pair.operators["one"], pair.operators["two"]
    with one:
        await pair.led_by("one")
        with two:
            await pair.waits(two)
            await cluster.apply()
            await cluster.settle()
            assert await asyncio.to_thread(one.stop) == 0
            stopped = time.monotonic()
            await pair.led_by("two")
            lasted = time.monotonic() - stopped
            print(f"stopped -> the other leads, seconds: {lasted:.2f}")
            assert lasted < deadline_seconds(30)
            await pair.flip_to(3, "prefill", "c-p-3", by="two")


async def test_one_that_slept_through_its_lease_writes_nothing_any_more_and_ends(cluster: Cluster) -> None:
    pair = Pair(cluster)
    one, two = pair.operators["one"], pair.operators["two"]
    with one:
        await pair.led_by("one")
        with two:
            await pair.waits(two)
            await cluster.apply()
            await cluster.settle()
            one.signal(signal.SIGSTOP)
            # It would act on this as soon as it wakes up: the watch's answer waits in its socket.
            await pair.led_by("two")
            await pair.flip_to(1, "decode", "c-p-1", by="two")
            acted = await pair.acted()
            versions = {name: pod["metadata"]["resourceVersion"] for name, pod in (await cluster.pods()).items()}
            one.signal(signal.SIGCONT)
            assert await asyncio.to_thread(one.wait) == 1
            assert "leader_lost" in one.log.read_text()
            assert await pair.acted() == acted
            assert {n: p["metadata"]["resourceVersion"] for n, p in (await cluster.pods()).items()} == versions
            assert await pair.holder() == "two"
