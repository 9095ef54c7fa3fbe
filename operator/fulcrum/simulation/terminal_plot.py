"""A plot for terminals: a line of bars per policy, as high as the share of requests inside the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fulcrum.simulation.comparison import ComparisonInputs, Entry
from fulcrum.simulation.over_time import attainment_by_arrival, flips

COLUMNS: Final = 60
"""Bars of a line: with the name of a policy they fit into 80 characters."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_LISTED: Final = 6
"""Flips that are listed by their time; a longer list helps nobody on a terminal."""


def plot_lines(inputs: ComparisonInputs, entries: Sequence[Entry]) -> list[str]:
    """Return the lines of the plot; none for a load that is over in a moment."""
    load = inputs.workload
    if load.duration_seconds < COLUMNS / 10:
        return []
    width_seconds = load.duration_seconds * (1 + 1e-9) / COLUMNS
    margin = max(len(entry.result.policy) for entry in entries) + 2
    lines = [f"Requests inside the SLO, by time of arrival: a bar for each {width_seconds:,.0f} s, █ all, ▁ none"]
    for entry in entries:
        shares = attainment_by_arrival(entry.result, inputs.slo, width_seconds)
        lines.append(f"{entry.result.policy:{margin}}{''.join(map(_bar, shares))}")
        turned = flips(entry.result)
        if turned:
            columns = {min(COLUMNS - 1, int(sample.seconds / width_seconds)) for sample in turned}
            marks = "".join("^" if column in columns else " " for column in range(COLUMNS)).rstrip()
            listed = ", ".join(f"{_split(each.prefill, each.decode, each.mixed)} {each.seconds:,.0f} s"
                               for each in turned[:_LISTED])  # fmt: skip
            lines.append(f"{'':{margin}}{marks}  flips: {listed}{', ...' if len(turned) > _LISTED else ''}")
    lines.append(f"{'':{margin}}{'0 s':<{COLUMNS - 10}}{f'{load.duration_seconds:,.0f} s':>10}")
    return lines


def _bar(share: float) -> str:
    return " " if np.isnan(share) else _BARS[round(share * (len(_BARS) - 1))]


def _split(prefill: int, decode: int, mixed: int) -> str:
    parts = ((prefill, "P"), (decode, "D"), (mixed, "M"))
    return ":".join(f"{count}{letter}" for count, letter in parts if count)
