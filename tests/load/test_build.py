"""From sums to traffic: what telemetry and the simulator share."""

from __future__ import annotations

import pytest

from fulcrum.load.build import Latencies, Window, build_traffic
from fulcrum.load.lengths import Arrived, Measured
from fulcrum.load.traffic import Traffic
from fulcrum.load.tuning import TUNING


def came(requests: float, tokens: float = 100.0) -> Arrived:
    return Arrived(requests=requests, prompt_tokens=requests * tokens, prompt_squares=requests * tokens**2)


def built(**sums: object) -> Traffic:
    window = Window(**({"seconds": 30.0, "arrivals": 60.0, "came": came(60.0)} | sums))  # type: ignore[arg-type]
    return build_traffic(window, Latencies(ttft_p50=0.1), ended=10.0)


def test_ratios_of_nothing_are_unknown() -> None:
    found = built()
    assert (found.rate, found.isl_tokens, found.osl_tokens) == (2.0, 100.0, None)
    assert (found.attainment, found.rejected, found.ttft_p50_seconds, found.ttft_p90_seconds) == (None, None, 0.1, None)


def test_a_load_that_begins_within_the_window_is_not_diluted_by_the_pause_before_it() -> None:
    """Arrivals are those of the newest part, attainment that of the whole window."""
    found = built(newest=[came(60.0)] * len(TUNING.newest_parts), judged=20.0, inside=15.0)
    assert found.window_seconds == TUNING.newest_parts[0] * 30.0
    assert found.rate == pytest.approx(60.0 / found.window_seconds)
    assert found.attainment == 0.75


def test_requests_that_came_in_an_earlier_window_do_not_make_a_share_above_one() -> None:
    assert built(rejected=9.0, rejectable=6.0).rejected == 1.0


def test_answers_correct_what_was_expected_of_those_that_came() -> None:
    ended = Measured(requests=10.0, tokens=2000.0, expected=10.0, expected_tokens=1000.0)
    expected = Arrived(requests=60.0, prompt_tokens=6000.0, prompt_squares=6e5, outputs=60.0, output_tokens=6000.0)
    assert built(came=expected, outputs=ended, outputs_longer=ended).osl_tokens == pytest.approx(200.0)
