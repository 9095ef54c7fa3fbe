"""What the demo is judged by, and what it prints of it: the load, bars over time, a table and the last line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from demo_load import (
    ANSWERS_SHARE,
    ANSWERS_SPLIT,
    OBSERVE_SECONDS,
    PROMPTS_SHARE,
    PROMPTS_SPLIT,
    Load,
    full_step_seconds,
    prefill_seconds,
)
from demo_replay import Seen, Shares, attainment
from rich.table import Table

from fulcrum.replay import Report

TARGET: Final = 0.90
"""Least share of the requests inside the SLO, without those that came while the operator could only watch."""
BUCKET_SECONDS: Final = 5.0
BAR: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo has shown."""

    report: Report
    flips: int
    kv_bytes: int
    load: Load | None
    """None on a machine that is too slow or too busy for promises of latency, and then there are no shares."""
    shares: Shares | None

    @property
    def problems(self) -> list[str]:
        """Targets that do not hold: what must not happen on any machine, and what the operator answers for."""
        found = {
            f"{self.report.lost} requests lost": self.report.lost > 0,
            f"{self.report.failed} requests failed": self.report.failed > 0,
            "no request was answered": not self.report.ok,
            "NIXL moved no KV cache": not self.kv_bytes,
            "no worker was flipped": not self.flips,
        }
        if (shares := self.shares) is not None:
            found |= {
                f"{percent(shares.judged)} inside the SLO, target {TARGET:.0%}": (shares.judged or 0.0) < TARGET,
                f"inside the SLO after the flip {percent(shares.after)}, before it {percent(shares.before)}": (
                    shares.before is None or shares.after is None or shares.after <= shares.before
                ),
            }
        return [problem for problem, holds in found.items() if holds]

    def last_line(self, seconds: float) -> str:
        """Return all figures of a run in one line."""
        ends = f"{self.kv_bytes / 2**20:.1f} MiB of KV cache moved by NIXL, {seconds:.0f} s"
        counts = f"{self.report.requests} requests, {self.report.lost} lost, {self.flips} flips, {ends}"
        if self.load is None or self.shares is None:
            return f"no promises of latency on this machine (above); {counts}"
        shares = self.shares
        return (
            f"{percent(shares.judged)} inside the SLO, of the long answers {percent(shares.before)} before the flip "
            f"and {percent(shares.after)} after it; {multiples(self.load)}; {counts}"
        )


def multiples(load: Load) -> str:
    """Return the promises and the load as multiples of what the engines measured."""
    prefill = load.slo.ttft_seconds / prefill_seconds(load.speed, load.prompts.prompt_tokens_mean)
    step = load.slo.tpot_seconds / full_step_seconds(load.speed, round(load.answers.output_tokens_mean))
    return (
        f"promised {prefill:.1f} x a long prompt's prefill and {step:.1f} x a full batch's step, "
        f"load {PROMPTS_SHARE:.0%} and {ANSWERS_SHARE:.0%} of capacity"
    )


def described(load: Load) -> Table:
    """Return what is promised, and the load of either phase."""
    rows = Table(
        title=f"Promised: TTFT {load.slo.ttft_seconds:.2f} s, TPOT {load.slo.tpot_seconds * 1000:.0f} ms "
        f"({multiples(load)})",
        title_justify="left",
    )
    for name in ("phase", "seconds", "requests/s", "prompt + answer", "right split"):
        rows.add_column(name)
    for name, phase, (prefill, decode) in (
        ("long prompts", load.prompts, PROMPTS_SPLIT),
        ("long answers", load.answers, ANSWERS_SPLIT),
    ):
        tokens = f"{phase.prompt_tokens_mean:.0f} + {phase.output_tokens_mean:.0f} tokens"
        rows.add_row(name, f"{phase.seconds:.0f}", f"{phase.requests_per_second:.2f}", tokens, f"{prefill}P:{decode}D")
    return rows


def plot(seen: Seen, load: Load) -> list[str]:
    """Attainment of the requests of each bucket of time, as bars, with each change of the ratio."""
    lines = [f"\ninside the SLO, by {BUCKET_SECONDS:.0f} s"]
    first = 0.0
    while first < load.seconds:
        if first == load.prompts.seconds:
            lines.append(
                f"{first:4.0f} s [cyan]-- the load moves to long answers; for {OBSERVE_SECONDS:.0f} s the operator "
                "can only watch, which is not judged[/]"
            )
        if first == load.act_seconds:
            lines.append(f"{first:4.0f} s [cyan]-- the operator may act[/]")
        here = seen.between(first, first + BUCKET_SECONDS)
        share = attainment(here, load.slo)
        filled = round(BAR * (share or 0.0))
        color = "green" if share is None or share >= TARGET else "yellow" if share >= TARGET / 2 else "red"
        bar = f"[{color}]{'█' * filled}[/][dim]{'·' * (BAR - filled)}[/]"
        lines.append(f"{first:4.0f} s {bar} {percent(share):>4} of {len(here)}")
        for at, ratio in seen.ratios:
            if first <= at < first + BUCKET_SECONDS:
                what = f"-- the operator flips: {ratio}" if at else f"-- {ratio}"
                lines.append(f"{at:4.0f} s [bold cyan]{what}[/]")
        first += BUCKET_SECONDS
    return lines


def table(shown: Shown) -> Table:
    report = shown.report
    rows = Table(show_header=False)
    for name in ("requests", "ok", "rejected", "failed", "lost"):
        rows.add_row(name, str(getattr(report, name)))
    for name, found in (("TTFT", report.ttft_seconds), ("TPOT", report.tpot_seconds)):
        if found is not None:
            rows.add_row(
                f"{name} p50 / p90 / p99",
                f"{found.p50 * 1000:.0f} / {found.p90 * 1000:.0f} / {found.p99 * 1000:.0f} ms",
            )
    if (shares := shown.shares) is not None:
        slo = report.slo
        rows.add_row(
            f"inside TTFT {slo.ttft_seconds:g} s and TPOT {slo.tpot_seconds * 1000:.0f} ms", percent(shares.judged)
        )
        rows.add_row("  with the seconds in which the operator could only watch", percent(shares.all))
        rows.add_row("  long answers, before the flip", percent(shares.before))
        rows.add_row("  long answers, after the flip", percent(shares.after))
        rows.add_row("goodput", f"{report.goodput_requests_per_second:.2f} requests/s")
    rows.add_row("flips", str(shown.flips))
    rows.add_row("KV cache moved by NIXL", f"{shown.kv_bytes / 2**20:.1f} MiB")
    return rows


def percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"
