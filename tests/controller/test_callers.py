"""What all gateways together say of callers."""

from __future__ import annotations

import pytest

from fulcrum.api.gateway import DemandReport
from fulcrum.controller.callers import together
from fulcrum.decide.measurements import Callers


@pytest.mark.parametrize(
    ("reports", "all_heard", "expected"),
    [
        ([], True, Callers()),
        ([DemandReport(held=0, up_seconds=9.0)], True, Callers(quiet_seconds=9.0)),
        (
            [DemandReport(held=1, up_seconds=99.0, idle_seconds=0.0), DemandReport(held=2, up_seconds=5.0)],
            True,
            Callers(held=3, idle_seconds=0.0, quiet_seconds=0.0),
        ),
        (
            [DemandReport(held=0, up_seconds=99.0, idle_seconds=50.0), DemandReport(held=0, up_seconds=5.0)],
            True,
            Callers(idle_seconds=50.0, quiet_seconds=5.0),
        ),
        # One gateway is not heard: what is held counts, and how long it was quiet is not known.
        (
            [DemandReport(held=1, up_seconds=99.0, idle_seconds=0.0, first_token_seconds=4.0)],
            False,
            Callers(held=1, idle_seconds=0.0, first_token_seconds=4.0),
        ),
    ],
)
def test_reports_together(reports: list[DemandReport], all_heard: bool, expected: Callers) -> None:
    assert together(reports, all_heard=all_heard) == expected
