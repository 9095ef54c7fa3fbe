"""What the measurement at start reads, and how long it may take; the real thing is in test_two_engines."""

from __future__ import annotations

import pytest

from fulcrum_worker.measure import BUDGET_SECONDS, LONGEST_BUDGET_SECONDS, _histograms, budget_for

PAGE = """\
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{le="+Inf",engine="0"} 3.0
vllm:request_prefill_time_seconds_count{engine="0"} 3.0
vllm:request_prefill_time_seconds_sum{engine="0"} 1.5
"""
STEPS = """\
# TYPE vllm:NAME histogram
vllm:NAME_bucket{le="+Inf",engine="0"} 8.0
vllm:NAME_count{engine="0"} 8.0
vllm:NAME_sum{engine="0"} 0.4
"""


@pytest.mark.parametrize(
    ("start_seconds", "budget_seconds"),
    [(5.0, BUDGET_SECONDS), (22.0, BUDGET_SECONDS), (90.0, 9.0), (900.0, LONGEST_BUDGET_SECONDS)],
)
def test_a_slow_start_is_given_a_longer_measurement(start_seconds: float, budget_seconds: float) -> None:
    assert budget_for(start_seconds) == pytest.approx(budget_seconds)


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_histograms_by_either_name(name: str) -> None:
    assert _histograms(PAGE + STEPS.replace("NAME", name)) == ((3.0, 1.5), (8.0, 0.4))


def test_an_engine_without_them_is_not_measured() -> None:
    with pytest.raises(LookupError, match="inter_token_latency"):
        _histograms(PAGE)
