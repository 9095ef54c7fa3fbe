"""What the status says of host memory and the KV pool: sums of what the workers report."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.names import Role
from fulcrum.api.types import KvTierStatus
from fulcrum.api.worker import KvPoolReport, LoadReport, OffloadReport, WorkCounters
from fulcrum.controller.kv_figures import kv_tiers

GIB = 1 << 30


def report(prompt_tokens: int | None = 1000, pool: KvPoolReport | None = None, **offload: Any) -> LoadReport:
    work = None
    if prompt_tokens is not None:
        work = WorkCounters(
            prompts=1, prompt_tokens=prompt_tokens, cached_tokens=0, prefill_seconds=1.0, decode_tokens=0,
            decode_seconds=0.0,
        )  # fmt: skip
    tier = OffloadReport(policy="load", host_bytes=GIB, pool=pool, **offload)
    return LoadReport(role=Role.MIXED, role_epoch=0, ready=True, draining=False, work=work, offload=tier)


def test_hits_are_weighed_by_prompts_and_rates_by_time() -> None:
    one = report(
        1000, host_used=0.5, device_hit_tokens=100, host_hit_tokens=300, loaded_bytes=8 * GIB, load_seconds=1.0,
        pool=KvPoolReport(size_bytes=100 * GIB, used_bytes=40 * GIB, hit_tokens=0),
    )  # fmt: skip
    other = report(
        3000, host_used=1.0, device_hit_tokens=700, host_hit_tokens=100, loaded_bytes=4 * GIB, load_seconds=2.0,
        pool=KvPoolReport(
            size_bytes=100 * GIB, used_bytes=42 * GIB, hit_tokens=400, read_bytes=6 * GIB, read_seconds=3.0
        ),
    )  # fmt: skip
    found = kv_tiers([("h100", one), ("h100", other)])
    assert found == {
        "h100": KvTierStatus(
            host_usage=0.75, shared_usage=0.41, device_hits=0.2, host_hits=0.1, shared_hits=0.1,
            host_bytes_per_second=4 * GIB, shared_bytes_per_second=2 * GIB,
        )
    }  # fmt: skip


def test_pools_of_workers_are_apart_and_those_without_tiers_absent() -> None:
    plain = LoadReport(role=Role.MIXED, role_epoch=0, ready=True, draining=False)
    found = kv_tiers([("b", report(host_used=0.25)), ("a", report(host_used=0.5)), ("c", plain)])
    assert [(pool, each.host_usage) for pool, each in found.items()] == [("a", 0.5), ("b", 0.25)]
    assert kv_tiers([]) == {}


def test_what_an_engine_does_not_tell_is_left_out_and_not_zero() -> None:
    silent = report(None, device_hit_tokens=5000)
    telling = report(1000, device_hit_tokens=250)
    assert kv_tiers([("p", silent), ("p", telling)])["p"].device_hits == 0.25
    assert kv_tiers([("p", report(0, device_hit_tokens=0))])["p"] == KvTierStatus()


@pytest.mark.parametrize("rate", [{"loaded_bytes": -1, "load_seconds": 1.0}, {"loaded_bytes": 1, "load_seconds": 0.0}])
def test_what_is_no_rate_is_absent(rate: dict[str, float]) -> None:
    assert kv_tiers([("p", report(**rate))])["p"].host_bytes_per_second is None
