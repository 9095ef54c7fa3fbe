"""Queries of a Prometheus server that scrapes the gateways, and what their answers amount to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.reasons import REJECTIONS
from fulcrum.forecast.series import LoadSeries
from fulcrum.telemetry.counts import (
    ARRIVALS,
    ARRIVED_PROMPT,
    ESTIMATES,
    HISTOGRAMS,
    INFO,
    OUTPUT,
    PREFIX,
    PROMPT,
    REQUESTS,
    SLO,
    WAITED,
    Counts,
    Key,
    by_class,
    count,
)
from fulcrum.telemetry.source import ClusterRef

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect

_MAX_POINTS: Final = 5_000
"""Steps of a range query. Prometheus refuses more than 11,000; these, of a dozen gateways, are an answer of 2 MiB."""
_MIN_SAMPLES: Final = 2
"""Without two scrapes in a window there is no increase."""
_KNOWN_SHARE: Final = 0.5
_MOST_SERIES: Final = 1_000
"""Most series of an answer: gateways of one cluster, those of rollouts of days among them."""

Row = Mapping[str, Any]


class UnknownError(Exception):
    """The answer cannot be used; the message says why."""


class Queries:
    """Queries of one call, one after the other, in a thread. Its client bounds their time and size."""

    def __init__(self, client: PrometheusConnect) -> None:
        self._client = client

    def check_gateways(self, cluster: ClusterRef, now: float, stale_seconds: float) -> None:
        """Raise UnknownError unless the expected gateways have been scraped of late."""
        if cluster.gateways < 1:
            raise UnknownError(f"no gateway is ready; look at Deployment {cluster.name}-gateway")
        selected = _select(INFO, cluster)
        rows = self._instant(_of_each("timestamp({})", INFO, cluster), now)
        fresh = sum(now - _value(row) <= stale_seconds for row in rows)
        if fresh >= cluster.gateways:
            return
        if not rows:
            raise UnknownError(f"it has no series {selected}; look at Status > Targets: it must scrape the gateways")
        if not fresh:
            newest_seconds = now - max(_value(row) for row in rows)
            raise UnknownError(
                f"the newest sample of {selected} is {newest_seconds:.0f} s old; look at Status > Targets"
            )
        raise UnknownError(
            f"it scrapes {fresh} of {cluster.gateways} gateways; look at the targets that are down in Status > Targets"
        )

    def counts(self, cluster: ClusterRef, window_seconds: float, now: float) -> Counts:
        """What all gateways counted in the window. Raises UnknownError when one was not scraped twice in it."""
        window = _duration(window_seconds)
        seen = self._instant(_of_each(f"count_over_time({{}}[{window}])", INFO, cluster), now)
        if sum(_value(row) >= _MIN_SAMPLES for row in seen) < cluster.gateways:
            raise UnknownError(
                f"not every gateway was scraped twice in the last {window}; wait, or scrape the gateways more often"
            )

        def increase(name: str, by: str = "", **labels: str) -> list[Row]:
            each = _of_each(f"increase({{}}[{window}])", name, cluster, by, take="avg", **labels)
            return self._instant(f"sum by ({by}) ({each})", now)

        counts: Counts = {Key(ARRIVALS): _value(_only(increase(ARRIVALS)))}
        for row in increase(REQUESTS, "reason", reason="|".join(REJECTIONS)):
            counts[Key(REQUESTS, row["metric"].get("reason", ""))] = _value(row)
        for name, by in ((SLO, "outcome"), (WAITED, "")):  # only gateways with a queue have the latter
            for row in increase(name, by):
                counts[Key(name, row["metric"].get(by, ""))] = _value(row)
        for name in HISTOGRAMS:
            for row in increase(f"{name}_bucket", "le"):
                counts[Key(f"{name}_bucket", row["metric"]["le"])] = _value(row)
        for total in (f"{name}_{part}" for name in (PROMPT, OUTPUT) for part in ("sum", "count")):
            counts[Key(total)] = _value(_only(increase(total)))
        for name in ESTIMATES:
            for part in ("sum", "count"):
                by = "class" if name == ARRIVED_PROMPT else ""
                for row in increase(f"{name}_{part}", by):  # gateways of an earlier version have none
                    count(counts, by_class(f"{name}_{part}", row["metric"].get("class", "")), _value(row))
        return counts

    def series(self, cluster: ClusterRef, interval_seconds: float, intervals: int, end_seconds: float) -> LoadSeries:
        """The last `intervals` intervals, from the first one that is known on. Raises UnknownError without any."""
        if intervals < 1:
            raise UnknownError("the history that was asked for is shorter than one interval")
        window = _duration(interval_seconds)

        def fold(query: str) -> dict[str, NDArray[np.float64]]:
            return self._range(query, end_seconds, interval_seconds, intervals)

        samples = list((fold(_of_each(f"count_over_time({{}}[{window}])", INFO, cluster))).values())
        usual = _usual(samples)
        # `increase` sees no step between the last scrape of one window and the first of the next, and makes up for it
        # by stretching what it saw. One more scrape in each window, and the stretch taken back: then all steps count.
        scrape_seconds = interval_seconds / max(usual, 1.0)
        stretch = interval_seconds / (interval_seconds + scrape_seconds)
        wider = _duration(interval_seconds + scrape_seconds)

        def increase(name: str) -> str:
            return f"sum({_of_each(f'increase({{}}[{wider}])', name, cluster, take='avg')})"

        def one(query: str) -> NDArray[np.float64]:
            return next(iter((fold(query)).values()), np.full(intervals, np.nan))

        arrivals = one(increase(ARRIVALS)) * stretch
        known = ~(_partial(samples, usual, intervals) | np.isnan(arrivals))
        if not known.any():
            raise UnknownError(
                f"no interval of {window} holds two scrapes of the gateways yet; wait, or scrape them more often"
            )
        first = int(np.argmax(known))
        lengths = [
            np.where(known, one(f"{increase(f'{name}_sum')} / {increase(f'{name}_count')}"), np.nan)
            for name in (PROMPT, OUTPUT)
        ]
        return LoadSeries(
            interval_seconds=interval_seconds,
            end_seconds=end_seconds,
            rate=np.where(known, np.maximum(arrivals, 0.0) / interval_seconds, np.nan)[first:],
            isl_tokens=lengths[0][first:],
            osl_tokens=lengths[1][first:],
        )

    def _instant(self, query: str, now: float) -> list[Row]:
        rows: list[Row] = self._client.custom_query(query, params={"time": f"{now:.3f}"})
        return rows

    def _range(self, query: str, end_seconds: float, step_seconds: float, steps: int) -> dict[str, NDArray[np.float64]]:
        """Values by series, one for each step, the last one at `end_seconds`; NaN where there is none."""
        found: dict[str, NDArray[np.float64]] = {}
        for first in range(0, steps, _MAX_POINTS):
            last = min(first + _MAX_POINTS, steps) - 1
            begin, end = (end_seconds - (steps - 1 - place) * step_seconds for place in (first, last))
            rows: list[Row] = self._client.custom_query_range(
                query, datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC), _duration(step_seconds),
                params={"start": f"{begin:.3f}", "end": f"{end:.3f}"},
            )  # fmt: skip
            for row in rows:
                name = json.dumps(row["metric"], sort_keys=True)
                if name not in found and len(found) >= _MOST_SERIES:
                    raise UnknownError(f"it answers with more than {_MOST_SERIES} series; look at its scrape config")
                values = found.setdefault(name, np.full(steps, np.nan))
                for at_seconds, text in row["values"]:
                    place = steps - 1 - round((end_seconds - float(at_seconds)) / step_seconds)
                    if 0 <= place < steps and math.isfinite(value := float(text)):
                        values[place] = value
        return found


def _usual(samples: Sequence[NDArray[np.float64]]) -> float:
    """Scrapes of a gateway in one interval; 0 when there was none."""
    counts = np.concatenate([np.nan_to_num(each) for each in samples]) if samples else np.zeros(0)
    return float(np.median(counts[counts > 0])) if counts.any() else 0.0


def _partial(samples: Sequence[NDArray[np.float64]], usual: float, steps: int) -> NDArray[np.bool_]:
    """Intervals in which a gateway that was there before and after was hardly scraped, or none was scraped at all."""
    if not samples:
        return np.ones(steps, dtype=bool)
    counts = np.nan_to_num(np.array(samples))
    places = np.arange(steps)
    partial = np.zeros(steps, dtype=bool)
    partial |= ~(counts >= _MIN_SAMPLES).any(axis=0)
    for gateway in counts:
        (present,) = np.nonzero(gateway)
        if len(present):
            # It begins and ends in the middle of an interval, but the newest interval is no end.
            inside = (places > present[0]) & ((places < present[-1]) | (present[-1] == steps - 1))
            partial |= inside & (gateway < _KNOWN_SHARE * usual)
    return partial


def _of_each(query: str, name: str, cluster: ClusterRef, by: str = "", *, take: str = "max", **labels: str) -> str:
    """A query for each gateway and each value of the label `by`: one value, however many scrape jobs see it.

    `query` has {} where the selector belongs. `take`: `max`, or `avg` for what is divided: each job stretches sums and
    counts by a factor of its own, and the mean of all jobs does so alike. Of gateways of earlier versions, which do not
    name themselves, every target counts.
    """
    also = f", {by}" if by else ""
    named, nameless = (query.format(_select(name, cluster, fulcrum_gateway=own, **labels)) for own in (".+", ""))
    return (
        f"{take} by (fulcrum_gateway{also}) (sum by (fulcrum_gateway, job, instance{also}) ({named})) "
        f"or sum by (job, instance{also}) ({nameless})"
    )


def _select(name: str, cluster: ClusterRef, **labels: str) -> str:
    """A selector of one of the cluster's series; `labels` are regular expressions."""
    matchers = [
        f"fulcrum_namespace={json.dumps(cluster.namespace)}",
        f"fulcrum_cluster={json.dumps(cluster.name)}",
        *(f"{label}=~{json.dumps(pattern)}" for label, pattern in labels.items()),
    ]
    return f"{PREFIX}{name}{{{','.join(matchers)}}}"


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _only(rows: Sequence[Row]) -> Row:
    if not rows:
        raise UnknownError("it has no increase of a counter that every gateway exports; look at its scrape config")
    return rows[0]


def _value(row: Row) -> float:
    value = float(row["value"][1])
    if not math.isfinite(value):
        raise UnknownError("it answered NaN")
    return value
