"""How often the agents of the workers are asked."""

from __future__ import annotations

import pytest

from fulcrum.gateway.workers.load_poll import period_seconds


@pytest.mark.parametrize(
    ("workers", "alone", "seconds"), [(8, True, 1.0), (8, False, 0.25), (100, False, 0.5), (1000, False, 1.0)]
)
def test_reports_are_newer_where_other_gateways_send_requests_too(workers: int, alone: bool, seconds: float) -> None:
    assert period_seconds(workers, alone=alone) == seconds
