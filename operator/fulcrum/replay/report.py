"""What a replay amounts to: counts, latency percentiles, SLO attainment, goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from fulcrum.replay.outcome import Outcome, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimits:
    """Latency that a request must stay within, in seconds."""

    ttft_seconds: float
    tpot_seconds: float

    def met_by(self, record: Record) -> bool:
        """True for an ok request inside both; one of a single token has no TPOT to miss."""
        ttft_seconds, tpot_seconds = record.ttft_seconds, record.tpot_seconds
        return (
            record.outcome is Outcome.OK
            and ttft_seconds is not None
            and ttft_seconds <= self.ttft_seconds
            and (tpot_seconds is None or tpot_seconds <= self.tpot_seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    p50: float
    p90: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a replay; also its JSON form. Latencies are those of ok requests."""

    requests: int
    """Offered, whatever became of them."""
    ok: int
    rejected: int
    failed: int
    lost: int
    unfinished: int
    """Under way, or not sent yet, when the replay was interrupted."""
    retries: int
    """How often a rejected request was sent again; the request itself counts once."""
    output_tokens: int
    wall_seconds: float
    """From the first request to the end of the last."""
    ttft_seconds: Percentiles | None
    tpot_seconds: Percentiles | None
    slo: LatencyLimits
    slo_attainment: float
    """Requests inside the SLO, of all that were offered, 0 to 1."""
    goodput_requests_per_second: float
    send_delay_p99_seconds: float
    """How late the client itself was; it is part of the TTFT above."""
    problems: dict[str, int]
    """What was wrong with requests that were not ok, and how often."""


def summarise(records: Sequence[Record], *, offered: int, slo: LatencyLimits) -> Report:
    """Report over the records of a replay of `offered` requests."""
    outcomes = Counter(record.outcome for record in records)
    ok = [record for record in records if record.outcome is Outcome.OK]
    inside = sum(slo.met_by(record) for record in ok)
    first_seconds = min((record.due_seconds for record in records), default=0.0)
    wall_seconds = max((record.end_seconds for record in records), default=0.0) - first_seconds
    send_delay = percentiles(record.sent_seconds - record.due_seconds for record in records)
    return Report(
        requests=offered,
        ok=outcomes[Outcome.OK],
        rejected=outcomes[Outcome.REJECTED],
        failed=outcomes[Outcome.FAILED],
        lost=outcomes[Outcome.LOST],
        unfinished=offered - len(records),
        retries=sum(record.retries for record in records),
        output_tokens=sum(record.output_tokens for record in ok),
        wall_seconds=wall_seconds,
        ttft_seconds=percentiles(record.ttft_seconds for record in ok),
        tpot_seconds=percentiles(record.tpot_seconds for record in ok),
        slo=slo,
        slo_attainment=inside / offered if offered else 0.0,
        goodput_requests_per_second=inside / wall_seconds if wall_seconds > 0 else 0.0,
        send_delay_p99_seconds=send_delay.p99 if send_delay else 0.0,
        problems=dict(Counter(f"{record.outcome}: {record.detail}" for record in records if record.detail)),
    )


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """p50, p90 and p99 of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    import numpy as np

    p50, p90, p99 = (float(value) for value in np.percentile(known, (50, 90, 99)))
    return Percentiles(p50=p50, p90=p90, p99=p99)


def as_lines(report: Report) -> list[str]:
    """The report for people, one figure a line."""
    lines = [
        f"requests        {report.requests}",
        f"ok              {report.ok}",
        f"rejected        {report.rejected}" + (f" (and {report.retries} retries)" if report.retries else ""),
        f"failed          {report.failed}",
        f"lost            {report.lost}",
    ]
    if report.unfinished:
        lines.append(f"unfinished      {report.unfinished} (interrupted)")
    lines += [
        f"TTFT            {_latency(report.ttft_seconds)}",
        f"TPOT            {_latency(report.tpot_seconds)}",
        f"SLO attainment  {report.slo_attainment:.1%} of all requests inside "
        f"TTFT {report.slo.ttft_seconds * 1000:g} ms and TPOT {report.slo.tpot_seconds * 1000:g} ms",
        f"goodput         {report.goodput_requests_per_second:.2f} requests/s inside the SLO, "
        f"over {report.wall_seconds:.1f} s",
        f"output tokens   {report.output_tokens}",
        f"send delay p99  {report.send_delay_p99_seconds * 1000:.1f} ms",
    ]
    return lines + [f"  {count} x {problem}" for problem, count in report.problems.items()]


def _latency(of: Percentiles | None) -> str:
    if of is None:
        return "unknown"
    return f"p50 {of.p50 * 1000:.1f} ms   p90 {of.p90 * 1000:.1f} ms   p99 {of.p99 * 1000:.1f} ms"
