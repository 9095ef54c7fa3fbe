"""The tiers of a worker, from what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.worker import KvPoolReport, OffloadReport
from fulcrum.kv import Tiers, tiers_of

TOKEN = 1000
"""Bytes of a token's KV."""


def report(pool: KvPoolReport | None = None, **changes: Any) -> OffloadReport:
    known = {"policy": "load", "host_bytes": 8_000_000, "host_tokens": 8_000, **changes}
    return OffloadReport(pool=pool, **known)


def tiers(**changes: Any) -> Tiers:
    found = tiers_of(report(**changes))
    assert found is not None
    return found


def test_links_are_as_quick_as_they_were_so_far() -> None:
    pool = KvPoolReport(size_bytes=50_000_000, read_bytes=6_000, read_seconds=3.0)
    found = tiers(loaded_bytes=10_000, load_seconds=1.0, pool=pool)
    assert found.host_tokens == 8_000
    assert found.host_link.seconds(1) == pytest.approx(0.1)
    assert found.pool_tokens == 50_000
    assert found.pool_link is not None
    assert found.pool_link.seconds(1) == pytest.approx(0.1 + 0.5), "what comes from the pool crosses both links"


@pytest.mark.parametrize("moved", [{}, {"loaded_bytes": 0, "load_seconds": 0.0}, {"loaded_bytes": 5}])
def test_before_the_first_load_a_link_is_a_usual_one(moved: dict[str, float]) -> None:
    found = tiers(pool=KvPoolReport(size_bytes=50_000_000), **moved)
    assert found.host_link.seconds(1) == pytest.approx(TOKEN / 25e9)
    assert found.pool_link is not None
    assert found.pool_link.seconds(1) == pytest.approx(TOKEN / 25e9 + TOKEN / 2.9e9)


def test_a_pool_that_does_not_work_is_none() -> None:
    found = tiers(pool=KvPoolReport(size_bytes=50_000_000, problem="slow"))
    assert (found.pool_tokens, found.pool_link) == (0.0, None)
    assert tiers() == found


@pytest.mark.parametrize(("policy", "front"), [("partialRecompute", True), ("load", False), ("of a newer one", False)])
def test_the_policy_that_runs_decides_on_the_front(policy: str, front: bool) -> None:
    assert tiers(policy=policy).front is front


@pytest.mark.parametrize("changes", [{"host_tokens": None}, {"host_tokens": 0}, {"host_bytes": 0}])
def test_without_the_size_of_a_token_nothing_is_known(changes: dict[str, Any]) -> None:
    assert tiers_of(report(**changes)) is None
