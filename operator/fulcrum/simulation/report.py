"""One HTML page about a comparison: a table, and plots as SVG inside it. Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from fulcrum.simulation.comparison import ComparisonInputs, Entry
from fulcrum.simulation.plots import plots_of

_COLUMNS: Final = (
    ("policy", "What decided"),
    ("in SLO", "Share of all requests whose first token and whose pace were in time"),
    ("goodput /s", "Requests per second inside the SLO"),
    ("per GPU /s", "The same per GPU that was held"),
    ("GPU-hours", "GPUs that were held, from the start of a Pod to its end"),
    ("TTFT p50 / p90 / p99 ms", "Time to first token of served requests"),
    ("TPOT p50 / p90 / p99 ms", "Time per output token of served requests"),
    ("flips", "Workers that changed their role"),
    ("Pods started", "After the beginning"),
    ("rejected", "Requests turned away early"),
    ("failed", "Requests lost, or without an answer at the end"),
    ("wasted prefill", "Share of the prefilled tokens that was for requests outside of the SLO"),
)
"""Heading and meaning of each."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c1c1c;
  background: #fff; }
h2 { font-size: 1.15rem; margin: 2rem 0 0; }
p.caption { margin: 0 0 .5rem; color: #555; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th { vertical-align: bottom; }
th[title] { cursor: help; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
dl { columns: 2; column-gap: 2rem; color: #555; font-size: .85rem; }
dt { display: inline; font-weight: 600; }
dd { display: inline; margin: 0; }
dd::after { content: ""; display: block; }
svg { width: 100%; height: auto; }
"""


def write_report(
    folder: Path, *, title: str, inputs: ComparisonInputs, entries: Sequence[Entry], most_within: int | None
) -> Path:
    """Write `report.html` into `folder`, which is made if need be; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(report_html(title=title, inputs=inputs, entries=entries, most_within=most_within), encoding="utf-8")
    return path


def report_html(*, title: str, inputs: ComparisonInputs, entries: Sequence[Entry], most_within: int | None) -> str:
    """Return the page."""
    load, slo = inputs.workload, inputs.slo
    pools = ", ".join(
        f"{pool.name} ({each.workers.min} to {each.workers.max} workers, GPUs per worker: {pool.gpus_per_worker})"
        for pool, each in zip(inputs.cluster.pools, inputs.spec.pools, strict=True)
    )
    rate = f" ({len(load) / load.duration_seconds:,.1f}/s)" if load.duration_seconds > 0 else ""
    about = (
        f"Simulated: {len(load):,} requests in {load.duration_seconds:,.0f} s{rate}, "
        f"{load.prompt_tokens.mean():,.0f} prompt and {load.output_tokens.mean():,.0f} output tokens on average. "
        f"Pools: {pools}. SLO: {slo.ttft_seconds * 1e3:,.0f} ms to the first token, "
        f"{slo.tpot_seconds * 1e3:,.0f} ms per token after it, for {slo.attainment:.0%} of the requests."
    )
    if most_within is not None:
        about += f" No planner could have more than {most_within / len(load):.1%} inside the SLO (a fluid bound)."
    head = "".join(f'<th title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in _COLUMNS)
    rows = "\n".join(_row(entry, inputs) for entry in entries)
    meanings = "".join(f"<dt>{escape(name)}</dt> <dd>{escape(meaning)}</dd>\n" for name, meaning in _COLUMNS[1:])
    figures = "\n".join(
        f'<h2>{escape(plot.heading)}</h2>\n<p class="caption">{escape(plot.caption)}</p>\n{plot.svg}'
        for plot in plots_of(inputs, entries)
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n"
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n'
        f"<dl>\n{meanings}</dl>\n{figures}\n</body>\n</html>\n"
    )


def _row(entry: Entry, inputs: ComparisonInputs) -> str:
    figures = entry.result.summary(inputs.slo)
    ttft, tpot = (
        " / ".join(f"{each * 1e3:,.0f}" for each in (times.p50, times.p90, times.p99)) if times.p50 >= 0 else "none"
        for times in (figures.ttft_seconds, figures.tpot_seconds)
    )
    cells = (
        figures.policy, f"{figures.attainment:.1%}", f"{figures.goodput:.2f}", f"{figures.goodput_per_gpu:.3f}",
        f"{figures.gpu_hours:.2f}", ttft, tpot, f"{figures.flips:,}", f"{figures.pods_started:,}",
        f"{figures.rejected:,}", f"{figures.failed:,}", f"{figures.wasted_prefill:.1%}",
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
