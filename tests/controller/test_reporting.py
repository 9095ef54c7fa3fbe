"""When a status is written, and when it is not."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from fulcrum.api.types import InferenceClusterStatus, KvCacheStatus
from fulcrum.controller import reporting
from fulcrum.controller.children import Owner
from fulcrum.controller.kube import Kube
from fulcrum.controller.reporting import Reporter
from fulcrum.decide.tuning import TUNING

OWNER = Owner(name="c", namespace="ns", uid="u")
WITHOUT = InferenceClusterStatus(ratio="1P:1D")
WHOLE = msgspec.structs.replace(WITHOUT, kv_cache=KvCacheStatus(dtype="auto", reason="r"))


class Server:
    """An API server whose CRD knows no `kvCache` in the status."""

    def __init__(self) -> None:
        self.status = InferenceClusterStatus()
        self.writes = 0

    async def apply_status(self, _resource: Any, _namespace: str, _name: str, status: dict[str, Any]) -> None:
        self.writes += 1
        kept = {name: value for name, value in status.items() if name != "kvCache"}
        self.status = msgspec.convert(kept, InferenceClusterStatus)


async def test_a_field_that_the_crd_drops_is_not_written_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    server = Server()
    reporter = Reporter(cast("Kube", server), identity="t")
    for _ in range(10):
        await reporter.write_status(OWNER, server.status, WHOLE)
    assert (server.writes, server.status) == (2, WITHOUT)
    server.status = InferenceClusterStatus()  # someone took it away
    await reporter.write_status(OWNER, server.status, WHOLE)
    assert server.status == WITHOUT
    writes = server.writes
    now += TUNING.resync_seconds  # the CRD may have been upgraded meanwhile
    await reporter.write_status(OWNER, server.status, WHOLE)
    assert server.writes == writes + 1


async def test_figures_alone_rest_for_as_long_as_is_said_and_go_along_with_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    server = Server()
    reporter = Reporter(cast("Kube", server), identity="t")
    seconds_of_writes: list[float] = []
    for second in range(200):
        now, writes = 1000.0 + second, server.writes
        ratio = "2P:1D" if second >= 100 else "1P:1D"
        figures = InferenceClusterStatus(ratio=ratio, attainment=0.5 + second / 1000)
        await reporter.write_status(OWNER, server.status, figures, rest_seconds=60.0)
        if server.writes > writes:
            seconds_of_writes.append(second)
    assert seconds_of_writes == [0, 60, 100, 160]
