"""The report's arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from fulcrum.replay import LatencyLimits, Outcome, Record, summarise
from fulcrum.replay.report import as_lines

SLO = LatencyLimits(ttft_seconds=1.0, tpot_seconds=0.1)


def record(
    outcome: Outcome = Outcome.OK, *, due: float = 0.0, ttft: float = 0.5, tpot: float = 0.05, tokens: int = 11
) -> Record:
    ok = outcome is Outcome.OK
    return Record(
        outcome=outcome,
        detail="" if ok else "why",
        due_seconds=due,
        sent_seconds=due,
        first_token_seconds=due + ttft if ok else None,
        last_token_seconds=due + ttft + tpot * (tokens - 1) if ok else None,
        end_seconds=due + ttft + tpot * (tokens - 1),
        output_tokens=tokens if ok else 0,
    )


def test_attainment_is_over_everything_offered() -> None:
    records = [
        record(),
        record(due=9.0),
        record(ttft=1.5),
        record(tpot=0.2),
        # One token: there is no time per further token to miss.
        record(tokens=1, tpot=9.0),
        record(Outcome.REJECTED),
        record(Outcome.FAILED),
        record(Outcome.LOST),
    ]
    report = summarise(records, offered=10, slo=SLO)
    assert (report.ok, report.rejected, report.failed, report.lost, report.unfinished) == (5, 1, 1, 1, 2)
    assert report.slo_attainment == 0.3
    assert report.wall_seconds == pytest.approx(10.0)
    assert report.goodput_requests_per_second == pytest.approx(0.3)
    assert report.ttft_seconds is not None
    assert report.ttft_seconds.p50 == 0.5
    assert report.ttft_seconds.p99 == pytest.approx(1.46)
    assert report.problems == {"rejected: why": 1, "failed: why": 1, "lost: why": 1}
    text = "\n".join(as_lines(report))
    assert "30.0% of all requests inside TTFT 1000 ms and TPOT 100 ms" in text
    assert "unfinished      2 (interrupted)" in text
    assert msgspec.json.decode(msgspec.json.encode(report))["slo"] == {"ttft_seconds": 1.0, "tpot_seconds": 0.1}


def test_nothing_known_is_not_zero() -> None:
    report = summarise([], offered=0, slo=SLO)
    assert report.ttft_seconds is None
    assert "TTFT            unknown" in as_lines(report)
