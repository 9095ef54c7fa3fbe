"""One HTML page about a comparison: a table, and plots as SVG inside it. Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from fulcrum.simulation.contest import Arena, Entry
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS: Final = 60
"""Moments along the time axis for which figures are averaged."""
_CDF_POINTS: Final = 400
_COLUMNS: Final = (
    "policy", "in SLO", "goodput /s", "per GPU /s", "GPU-hours", "TTFT p50 / p90 / p99 ms", "TPOT p50 / p90 / p99 ms",
    "flips", "Pods started", "rejected", "failed", "wasted prefill",
)  # fmt: skip
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c1c1c; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; }
"""


def write_report(folder: Path, *, title: str, arena: Arena, entries: Sequence[Entry], most_within: int | None) -> Path:
    """Write `report.html` into `folder`, which is made if need be; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(report_html(title=title, arena=arena, entries=entries, most_within=most_within), encoding="utf-8")
    return path


def report_html(*, title: str, arena: Arena, entries: Sequence[Entry], most_within: int | None) -> str:
    """Return the page."""
    load, slo = arena.workload, arena.slo
    plots = [
        ("Workers that prefill, over time", _plot(lambda axes: _ratio(axes, entries))),
        ("Share inside the SLO, by time of arrival", _plot(lambda axes: _attainment(axes, arena, entries))),
        ("Time to first token", _plot(lambda axes: _cdf(axes, entries, "ttft_seconds", slo.ttft_seconds))),
        ("Time per output token", _plot(lambda axes: _cdf(axes, entries, "tpot_seconds", slo.tpot_seconds))),
    ]
    ours = next((entry.policy for entry in entries if isinstance(entry.policy, Ours)), None)
    if ours is not None and ours.forecasts:
        plots.insert(1, ("Forecast and actual rate", _plot(lambda axes: _forecast(axes, arena, ours))))
    known = "" if most_within is None else f" No planner could have more than {most_within:,} of them inside the SLO."
    about = (
        f"{len(load):,} requests in {load.duration_seconds:,.0f} s, {load.prompt_tokens.mean():,.0f} prompt and "
        f"{load.output_tokens.mean():,.0f} output tokens on average. "
        f"SLO: {slo.ttft_seconds * 1e3:,.0f} ms to the first token, {slo.tpot_seconds * 1e3:,.0f} ms per token after "
        f"it.{known}"
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = "\n".join(_row(entry, arena) for entry in entries)
    figures = "\n".join(f"<h2>{escape(name)}</h2>\n{svg}" for name, svg in plots)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n"
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n'
        f"{figures}\n</body>\n</html>\n"
    )


def _row(entry: Entry, arena: Arena) -> str:
    figures = entry.result.summary(arena.slo)
    ttft, tpot = (
        " / ".join(f"{each * 1e3:,.0f}" for each in (times.p50, times.p90, times.p99))
        for times in (figures.ttft_seconds, figures.tpot_seconds)
    )
    cells = (
        figures.policy, f"{figures.attainment:.1%}", f"{figures.goodput:.2f}", f"{figures.goodput_per_gpu:.3f}",
        f"{figures.gpu_hours:.2f}", ttft, tpot, str(figures.flips), str(figures.pods_started), f"{figures.rejected:,}",
        f"{figures.failed:,}", f"{figures.wasted_prefill:.1%}",
    )  # fmt: skip
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _plot(draw: Callable[[Axes], None]) -> str:
    """Return the SVG element of one plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "fulcrum", "svg.fonttype": "none", "grid.alpha": 0.3, "axes.grid": True}):
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _ratio(axes: Axes, entries: Sequence[Entry]) -> None:
    for entry in entries:
        fleet = entry.result.fleet
        at = [*(sample.seconds for sample in fleet), entry.result.end_of_run_seconds]
        # A mixed worker counts half: it does both.
        share = [
            (sample.prefill + sample.mixed / 2) / max(1, sample.prefill + sample.decode + sample.mixed)
            for sample in fleet
        ]
        optimum = entry.name == "optimum"
        axes.step(
            np.array(at) / 60,
            [*share, share[-1]],
            where="post",
            label=entry.result.policy,
            color="black" if optimum else None,
            linestyle="--" if optimum else "-",
        )
    axes.set(xlabel="minutes", ylabel="share of the workers", ylim=(0, 1))


def _forecast(axes: Axes, arena: Arena, ours: Ours) -> None:
    interval = ours.forecasts[0][1].interval_seconds
    load = arena.workload
    counts = np.bincount((load.arrival_seconds // interval).astype(np.int64))
    axes.step((np.arange(len(counts)) + 0.5) * interval / 60, counts / interval, where="mid", label="actual")
    # What was forecast for the farthest interval of each horizon: that is what Pods are started for.
    ahead = [((at // interval + len(made.rate) - 0.5) * interval / 60, made) for at, made in ours.forecasts]
    axes.plot([at for at, _ in ahead], [made.rate[-1] for _, made in ahead], label="forecast")
    axes.plot(
        [at for at, _ in ahead],
        [made.upper_rate[-1] for _, made in ahead],
        linestyle=":",
        label=f"forecast, quantile {ahead[0][1].quantile:g}",
    )
    axes.set(xlabel="minutes", ylabel="requests/s", ylim=(0, None))


def _cdf(axes: Axes, entries: Sequence[Entry], column: str, target_seconds: float) -> None:
    levels = np.linspace(0, 1, _CDF_POINTS)
    for entry in entries:
        values = getattr(entry.result, column)[entry.result.outcome == Outcome.SERVED]
        values = values[~np.isnan(values)]
        if len(values):
            axes.plot(np.maximum(np.quantile(values, levels), 1e-6) * 1e3, levels, label=entry.result.policy)
    axes.axvline(target_seconds * 1e3, color="black", linestyle=":", label="SLO")
    axes.set(xlabel="milliseconds", ylabel="share of served requests", xscale="log", ylim=(0, 1.01))


def _attainment(axes: Axes, arena: Arena, entries: Sequence[Entry]) -> None:
    load = arena.workload
    width = max(load.duration_seconds / _POINTS, 1.0)
    window = (load.arrival_seconds // width).astype(np.int64)
    arrived = np.bincount(window).astype(np.float64)
    arrived[arrived == 0] = np.nan
    for entry in entries:
        within = np.bincount(window, weights=entry.result.within(arena.slo), minlength=len(arrived))
        axes.plot((np.arange(len(arrived)) + 0.5) * width / 60, within / arrived, label=entry.result.policy)
    axes.axhline(arena.slo.attainment, color="black", linestyle=":", label="promise")
    axes.set(xlabel="minutes", ylabel="inside the SLO", ylim=(0, 1.02))
