"""The plots of a report, as SVG elements. A policy has one colour in all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fulcrum.simulation.comparison import ComparisonInputs, Entry
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.over_time import attainment_by_arrival
from fulcrum.simulation.policies import Ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS: Final = 60
"""Moments along the time axis for which figures are averaged."""
_CDF_POINTS: Final = 400
_COLOURS: Final = ("#1f6feb", "#e8710a", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#846358", "#a61e4d")
_WIDEST: Final = 3.0
"""Of the first policy's line, in points; each later one is thinner, so that equal ones show beneath each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """An SVG element with its heading, and what to know when one reads it."""

    heading: str
    caption: str
    svg: str


def plots_of(inputs: ComparisonInputs, entries: Sequence[Entry]) -> list[Plot]:
    """Return the plots of a comparison."""
    slo, made = inputs.slo, [_ratio(entries)]
    ours = next((entry.policy for entry in entries if isinstance(entry.policy, Ours)), None)
    if ours is not None and ours.forecasts:
        made.append(_forecast(inputs, ours))
    made.append(_attainment(inputs, entries))
    made.append(_cdf(entries, "Time to first token", "ttft_seconds", slo.ttft_seconds))
    made.append(_cdf(entries, "Time per output token", "tpot_seconds", slo.tpot_seconds))
    return made


def _ratio(entries: Sequence[Entry]) -> Plot:
    def draw(axes: Axes) -> None:
        for entry, style in zip(entries, _styles(entries), strict=True):
            fleet = entry.result.fleet
            at = [*(sample.seconds for sample in fleet), entry.result.end_of_run_seconds]
            share = [
                (sample.prefill + sample.mixed / 2) / max(1, sample.prefill + sample.decode + sample.mixed)
                for sample in fleet
            ]
            axes.step(np.array(at) / 60, [*share, share[-1]], where="post", **style)
        axes.set(ylabel="share of the workers", ylim=(0, 1))
        _percent(axes)
        _minutes(axes)

    caption = "Which share of the ready workers prefills. One that does both counts half."
    return _plot("Workers that prefill", caption, draw)


def _forecast(inputs: ComparisonInputs, ours: Ours) -> Plot:
    interval = ours.forecasts[0][1].interval_seconds
    quantile = ours.forecasts[0][1].quantile

    def draw(axes: Axes) -> None:
        load = inputs.workload
        counts = np.bincount((load.arrival_seconds // interval).astype(np.int64))
        # The last interval is not over when the trace ends.
        counts = counts[: max(1, int(load.duration_seconds // interval))]
        middles = (np.arange(len(counts)) + 0.5) * interval / 60
        axes.step(middles, counts / interval, where="mid", color="#868e96", label="actual")
        ahead = [((at // interval + len(made.rate) - 0.5) * interval / 60, made) for at, made in ours.forecasts]
        minutes = [at for at, _ in ahead]
        axes.plot(minutes, [made.rate[-1] for _, made in ahead], color=_COLOURS[0], marker=".", label="forecast")
        upper = [made.upper_rate[-1] for _, made in ahead]
        label = f"forecast, {quantile:.0%} quantile"
        axes.plot(minutes, upper, color=_COLOURS[0], linestyle=":", marker=".", label=label)
        axes.set(ylabel="requests per second", ylim=(0, None))
        _minutes(axes)

    caption = (
        f"Means over {interval:,.0f} s. A forecast stands at the moment that it is about, the farthest of its horizon: "
        "that is what Pods are started for."
    )
    return _plot("Forecast and actual rate", caption, draw)


def _attainment(inputs: ComparisonInputs, entries: Sequence[Entry]) -> Plot:
    load = inputs.workload
    width = max(load.duration_seconds / _POINTS, 1.0)

    def draw(axes: Axes) -> None:
        for entry, style in zip(entries, _styles(entries), strict=True):
            shares = attainment_by_arrival(entry.result, inputs.slo, width)
            middles = (np.arange(len(shares)) + 0.5) * width / 60
            axes.plot(middles, shares, marker="." if len(shares) == 1 else "", **style)
        axes.axhline(inputs.slo.attainment, color="black", linestyle=":", label=f"promise, {inputs.slo.attainment:.0%}")
        axes.set(ylabel="requests inside the SLO", ylim=(0, 1.02))
        _percent(axes)
        _minutes(axes)

    caption = f"Of the requests that arrived in each {width:,.0f} s; rejected ones count as outside."
    return _plot("Share inside the SLO, by time of arrival", caption, draw)


def _cdf(entries: Sequence[Entry], heading: str, column: str, target_seconds: float) -> Plot:
    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogFormatter

        levels = np.linspace(0, 1, _CDF_POINTS)
        for entry, style in zip(entries, _styles(entries), strict=True):
            values = getattr(entry.result, column)[entry.result.outcome == Outcome.SERVED]
            values = values[~np.isnan(values)]
            # A line without points keeps the policy in the legend when it served no request.
            seconds = np.quantile(values, levels) if len(values) else np.array([])
            axes.plot(np.maximum(seconds, 1e-6) * 1e3, levels[: len(seconds)], **style)
        axes.axvline(target_seconds * 1e3, color="black", linestyle=":", label=f"SLO, {target_seconds * 1e3:,.0f} ms")
        axes.set(xlabel="milliseconds", ylabel="served requests", xscale="log", ylim=(0, 1.01))
        axes.xaxis.set_major_formatter(lambda milliseconds, _: f"{milliseconds:,g}")
        axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        _percent(axes)

    return _plot(heading, "Share of the served requests that took at most so long; further left is quicker.", draw)


def _styles(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return how matplotlib draws the line of each policy."""
    thinner = (_WIDEST - 1) / max(1, len(entries) - 1)
    return [
        {
            "label": entry.result.policy,
            "color": "black" if entry.yardstick else _COLOURS[number % len(_COLOURS)],
            # Colours that come again are told apart by their dashes.
            "linestyle": "--" if entry.yardstick else ("-", "-.")[number // len(_COLOURS) % 2],
            "linewidth": _WIDEST - number * thinner,
        }
        for number, entry in enumerate(entries)
    ]


def _minutes(axes: Axes) -> None:
    axes.set(xlabel="minutes", xlim=(0, None))


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _plot(heading: str, caption: str, draw: Callable[[Axes], None]) -> Plot:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(
        {
            "svg.hashsalt": "fulcrum", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3,
            "axes.spines.top": False, "axes.spines.right": False, "axes.xmargin": 0.0,
        }
    ):  # fmt: skip
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return Plot(heading=heading, caption=caption, svg=svg[svg.index("<svg") :])
