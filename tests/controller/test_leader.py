"""Leader election, step by step: every clock is the test's own, and the API server is a dictionary with versions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import deadline_seconds

from fulcrum.api.errors import InvalidValueError
from fulcrum.controller.leader import Election, Leadership, LeaseLostError
from fulcrum.controller.metrics import Metrics
from fulcrum.kube import ApiFailure, Unreachable

Manifest = dict[str, Any]


class Leases:
    """One Lease with optimistic concurrency, as `Kube` shows it."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.version = 0
        self.down = False

    async def get(self, _resource: object, _namespace: str, _name: str) -> Manifest | None:
        self._check()
        return self.lease

    async def create(self, _resource: object, manifest: Manifest) -> Manifest | None:
        self._check()
        return None if self.lease is not None else self._store(manifest)

    async def replace(self, _resource: object, manifest: Manifest) -> Manifest | None:
        self._check()
        if self.lease is None or manifest["metadata"]["resourceVersion"] != str(self.version):
            return None
        return self._store(manifest)

    def _store(self, manifest: Manifest) -> Manifest:
        self.version += 1
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def _check(self) -> None:
        if self.down:
            raise Unreachable("down")

    @property
    def spec(self) -> Manifest:
        assert self.lease is not None
        spec: Manifest = self.lease["spec"]
        return spec


class Candidate:
    """A process with a clock of its own, which starts anywhere."""

    def __init__(self, leases: Leases, name: str, *, clock_seconds: float = 0.0, skew_seconds: float = 0.0) -> None:
        self.clock_seconds = clock_seconds
        self.skew_seconds = skew_seconds
        self.leadership = Leadership(
            leases,  # type: ignore[arg-type]
            Metrics(),
            Election(namespace="n", name="l", identity=name),
            clock=lambda: self.clock_seconds,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.clock_seconds + self.skew_seconds),
        )

    async def attempt(self) -> bool:
        """One attempt to get or keep the Lease, as `acquire` and `hold` make them."""
        return await self.leadership._renewed() if self.leadership._renewed_at is not None else await self._first()

    async def _first(self) -> bool:
        try:
            return await self.leadership._try()
        except ApiFailure:
            return False


async def test_the_first_one_leads_and_the_second_waits_until_the_lease_has_stood_for_its_duration() -> None:
    leases = Leases()
    a, b = Candidate(leases, "a"), Candidate(leases, "b", clock_seconds=1e6, skew_seconds=-5e6)
    assert await a.attempt()
    assert leases.spec["leaseTransitions"] == 0
    assert leases.spec["acquireTime"] == leases.spec["renewTime"] == "2026-01-01T00:00:00.000000Z"
    assert not await b.attempt()
    for _ in range(20):
        a.clock_seconds += 5
        b.clock_seconds += 5
        assert await a.attempt()
        assert not await b.attempt()
    assert leases.spec["renewTime"] == "2026-01-01T00:01:40.000000Z"
    b.clock_seconds += 14.9
    assert not await b.attempt()
    b.clock_seconds += 0.1
    assert await b.attempt()
    assert (leases.spec["holderIdentity"], leases.spec["leaseTransitions"]) == ("b", 1)


async def test_a_released_lease_is_taken_at_once() -> None:
    leases = Leases()
    a, b = Candidate(leases, "a"), Candidate(leases, "b")
    assert await a.attempt()
    assert not await b.attempt()
    await a.leadership.release()
    assert not a.leadership.leads()
    assert "holderIdentity" not in leases.spec
    assert await b.attempt()
    assert leases.spec["leaseTransitions"] == 1
    assert leases.spec["leaseDurationSeconds"] == 15


async def test_a_restarted_holder_goes_on_at_once() -> None:
    leases = Leases()
    assert await Candidate(leases, "a").attempt()
    again = Candidate(leases, "a", clock_seconds=3.0)
    assert await again.attempt()
    assert leases.spec["leaseTransitions"] == 0
    assert leases.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"


async def test_a_holder_that_cannot_renew_stops_before_another_may_begin() -> None:
    leases = Leases()
    a = Candidate(leases, "a")
    assert await a.attempt()
    leases.down = True
    a.clock_seconds += 9.9
    assert not await a.attempt()
    assert a.leadership.leads()
    a.clock_seconds += 0.1
    assert not a.leadership.leads()
    with pytest.raises(LeaseLostError, match="renewed"):
        await asyncio.wait_for(a.leadership.hold(), deadline_seconds(5))


async def test_a_lease_that_was_taken_ends_the_holder_at_once() -> None:
    leases = Leases()
    a = Candidate(leases, "a")
    a.leadership = Leadership(
        leases,  # type: ignore[arg-type]
        Metrics(),
        Election(namespace="n", name="l", identity="a", retry_seconds=0.01),
    )
    await asyncio.wait_for(a.leadership.acquire(), deadline_seconds(5))
    leases._store({**(leases.lease or {}), "spec": {**leases.spec, "holderIdentity": "b"}})
    with pytest.raises(LeaseLostError, match="taken by b"):
        await asyncio.wait_for(a.leadership.hold(), deadline_seconds(5))
    assert not a.leadership.leads()


async def test_of_two_that_try_at_once_one_gets_it() -> None:
    leases = Leases()
    candidates = [Candidate(leases, name) for name in "abcd"]
    assert sum(await asyncio.gather(*(c.attempt() for c in candidates))) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["attempt", "release", "restart", "sleep"]),
            st.floats(0, 8),
            st.booleans(),
        ),
        max_size=60,
    )
)
@settings(deadline=None)
def test_never_two_at_once(steps: list[tuple[str, str, float, bool]]) -> None:
    """Whatever happens in whatever order: candidates whose clocks run alike never lead together."""

    async def play() -> None:
        leases = Leases()
        candidates = {
            name: Candidate(leases, name, clock_seconds=start) for name, start in (("a", 0.0), ("b", 1e5), ("c", 7.0))
        }
        for name, what, seconds, down in steps:
            for candidate in candidates.values():
                candidate.clock_seconds += seconds
            leases.down = down
            one = candidates[name]
            if what == "attempt":
                await one.attempt()
            elif what == "release":
                await one.leadership.release()
            elif what == "restart":
                candidates[name] = Candidate(leases, name, clock_seconds=one.clock_seconds + 1e3)
            assert sum(c.leadership.leads() for c in candidates.values()) <= 1

    asyncio.run(play())


@pytest.mark.parametrize(
    "times",
    [
        {"lease_seconds": 10, "renew_deadline_seconds": 10.0},
        {"renew_deadline_seconds": 2.0, "retry_seconds": 2.0},
        {"retry_seconds": 0.0},
    ],
)
def test_times_that_do_not_fit_together_are_refused(times: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        Election(namespace="n", name="l", identity="a", **times)
