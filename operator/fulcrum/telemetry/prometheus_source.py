"""Load from a Prometheus server that scrapes the gateways: histories of hours that outlive this process."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.reasons import REJECTIONS
from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic
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
    Counts,
    Key,
    count_class,
    make_traffic,
)
from fulcrum.telemetry.prometheus_access import PrometheusAccess
from fulcrum.telemetry.source import ClusterRef, Unknown

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 5.0
STALE_SECONDS: Final = 90.0
"""A gateway's newest sample may be this old; Prometheus itself would go on for five minutes."""
_MAX_POINTS: Final = 10_000
"""Prometheus refuses range queries of more than 11,000 steps."""
_MIN_SAMPLES: Final = 2
"""Without two scrapes in a window there is no increase."""
_KNOWN_SHARE: Final = 0.5
_STATUS_CODE: Final = re.compile(r"HTTP Status Code (\d{3})\b")

Row = Mapping[str, Any]
Answer = TypeVar("Answer")


class UnknownError(Exception):
    """The answer cannot be used; the message says why."""


class PrometheusSource:
    """`TelemetrySource` over one Prometheus server. Use as an async context manager.

    The client library is synchronous, so queries run in threads of their own under a hard deadline. Users of the
    cluster name the server, so it may be any: nothing that it answers is repeated, and no redirect is followed.
    """

    def __init__(
        self,
        url: str,
        access: PrometheusAccess | None = None,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self.access = access or PrometheusAccess()
        """May be replaced: tokens are rotated."""
        self._deadline_seconds = deadline_seconds
        self._stale_seconds = stale_seconds
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prometheus")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        """As `TelemetrySource`; the interval must hold two scrapes or more."""
        end_seconds = math.floor(now / interval_seconds) * interval_seconds
        intervals = int(history_seconds // interval_seconds)

        def ask(queries: _Queries) -> LoadSeries:
            queries.check_gateways(cluster, now, self._stale_seconds)
            return queries.series(cluster, interval_seconds, intervals, end_seconds)

        return await self._run(cluster, ask)

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        """As `TelemetrySource`; the window must hold two scrapes or more."""

        def ask(queries: _Queries) -> Traffic:
            queries.check_gateways(cluster, now, self._stale_seconds)
            return make_traffic(queries.counts(cluster, window_seconds, now), window_seconds)

        return await self._run(cluster, ask)

    async def _run(self, cluster: ClusterRef, ask: Callable[[_Queries], Answer]) -> Answer | Unknown:
        import requests
        from prometheus_api_client.exceptions import PrometheusApiClientException

        deadline = time.monotonic() + self._deadline_seconds
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await loop.run_in_executor(self._threads, _with_queries, ask, self._url, self.access, deadline)
        except UnknownError as error:
            why = str(error)
        except (TimeoutError, requests.Timeout):
            why = f"it did not answer within {self._deadline_seconds:g} s; look at its load and at the network"
        except requests.exceptions.InvalidJSONError:
            why = "it does not answer like Prometheus (no JSON); look at metrics.prometheus.url"
        except requests.TooManyRedirects:
            why = "it redirects, which is not followed; write the final address into metrics.prometheus.url"
        except requests.exceptions.SSLError:
            why = "its certificate is not trusted; put its CA into the key ca.crt of metrics.prometheus.secretName"
        except ssl.SSLError:
            why = "the key ca.crt of metrics.prometheus.secretName holds no certificate in PEM form"
        except requests.RequestException as error:
            why = f"it cannot be reached ({_root(error)}); look at metrics.prometheus.url and whether it runs"
        except PrometheusApiClientException as error:
            why = f"it refused a query{_status_code(error)}; look at its log, and at metrics.prometheus.secretName"
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"it does not answer like Prometheus ({type(error).__name__}); look at metrics.prometheus.url"
        logger.debug("prometheus_unknown url=%s cluster=%s/%s why=%s", self._url, cluster.namespace, cluster.name, why)
        return Unknown(f"Prometheus at {self._url}, cluster {cluster.namespace}/{cluster.name}: {why}.")


def _with_queries(ask: Callable[[_Queries], Answer], url: str, access: PrometheusAccess, deadline: float) -> Answer:
    queries = _Queries(url, access, deadline)
    try:
        return ask(queries)
    finally:
        queries.close()


class _Queries:
    """Queries of one call, within what is left of its time. Everything here runs in a thread."""

    def __init__(self, url: str, access: PrometheusAccess, deadline: float) -> None:
        from prometheus_api_client import PrometheusConnect

        from fulcrum.telemetry.prometheus_access import session_for

        session, adapter = session_for(access)
        self._client: PrometheusConnect = PrometheusConnect(url=url, headers=access.headers, session=session)
        session.mount(url, adapter)  # in place of the client's own
        self._deadline = deadline

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check_gateways(self, cluster: ClusterRef, now: float, stale_seconds: float) -> None:
        """Raise UnknownError unless the expected gateways have been scraped of late."""
        if cluster.gateways < 1:
            raise UnknownError(f"no gateway is ready; look at Deployment {cluster.name}-gateway")
        selected = _select(INFO, cluster)
        rows = self._instant(f"timestamp({selected})", now)
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
        seen = self._instant(f"count_over_time({_select(INFO, cluster)}[{window}])", now)
        if sum(_value(row) >= _MIN_SAMPLES for row in seen) < cluster.gateways:
            raise UnknownError(
                f"not every gateway was scraped twice in the last {window}; wait, or scrape the gateways more often"
            )

        def increase(name: str, by: str = "", **labels: str) -> list[Row]:
            return self._instant(f"sum by ({by}) (increase({_select(name, cluster, **labels)}[{window}]))", now)

        counts: Counts = {Key(ARRIVALS): _value(_only(increase(ARRIVALS)))}
        for row in increase(REQUESTS, "reason", reason="|".join(REJECTIONS)):
            counts[Key(REQUESTS, row["metric"].get("reason", ""))] = _value(row)
        for row in increase(SLO, "outcome"):
            counts[Key(SLO, row["metric"].get("outcome", ""))] = _value(row)
        for name in HISTOGRAMS:
            for row in increase(f"{name}_bucket", "le"):
                counts[Key(f"{name}_bucket", row["metric"]["le"])] = _value(row)
        for name in (PROMPT, OUTPUT):
            for part in ("sum", "count"):
                counts[Key(f"{name}_{part}")] = _value(_only(increase(f"{name}_{part}")))
        for name in ESTIMATES:
            for part in ("sum", "count"):
                by = "class" if name == ARRIVED_PROMPT else ""
                for row in increase(f"{name}_{part}", by):  # gateways of an earlier version have none
                    count_class(counts, f"{name}_{part}", row["metric"].get("class", ""), _value(row))
        return counts

    def series(self, cluster: ClusterRef, interval_seconds: float, intervals: int, end_seconds: float) -> LoadSeries:
        """The last `intervals` intervals, from the first one that is known on. Raises UnknownError without any."""
        if intervals < 1:
            raise UnknownError("the history that was asked for is shorter than one interval")
        window = _duration(interval_seconds)

        def fold(query: str) -> dict[str, NDArray[np.float64]]:
            return self._range(query, end_seconds, interval_seconds, intervals)

        samples = list(fold(f"count_over_time({_select(INFO, cluster)}[{window}])").values())
        usual = _usual(samples)
        # `increase` sees no step between the last scrape of one window and the first of the next, and makes up for it
        # by stretching what it saw. One more scrape in each window, and the stretch taken back: then all steps count.
        scrape_seconds = interval_seconds / max(usual, 1.0)
        stretch = interval_seconds / (interval_seconds + scrape_seconds)
        wider = _duration(interval_seconds + scrape_seconds)

        def increase(name: str) -> str:
            return f"sum(increase({_select(name, cluster)}[{wider}]))"

        def one(query: str) -> NDArray[np.float64]:
            return next(iter(fold(query).values()), np.full(intervals, np.nan))

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
        rows: list[Row] = self._client.custom_query(query, params={"time": f"{now:.3f}"}, timeout=self._left())
        return rows

    def _range(self, query: str, end_seconds: float, step_seconds: float, steps: int) -> dict[str, NDArray[np.float64]]:
        """Values by series, one for each step, the last one at `end_seconds`; NaN where there is none."""
        found: dict[str, NDArray[np.float64]] = {}
        for first in range(0, steps, _MAX_POINTS):
            last = min(first + _MAX_POINTS, steps) - 1
            begin, end = (end_seconds - (steps - 1 - place) * step_seconds for place in (first, last))
            rows: list[Row] = self._client.custom_query_range(
                query, datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC), _duration(step_seconds),
                params={"start": f"{begin:.3f}", "end": f"{end:.3f}"}, timeout=self._left(),
            )  # fmt: skip
            for row in rows:
                values = found.setdefault(json.dumps(row["metric"], sort_keys=True), np.full(steps, np.nan))
                for at_seconds, text in row["values"]:
                    place = steps - 1 - round((end_seconds - float(at_seconds)) / step_seconds)
                    if 0 <= place < steps:
                        values[place] = float(text)
        return found

    def _left(self) -> int:
        """Time-out of one request in whole seconds, which is what the client takes; the caller's deadline is exact."""
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError
        return math.ceil(left_seconds)


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


def _status_code(error: Exception) -> str:
    found = _STATUS_CODE.search(str(error))
    return f" (HTTP {found[1]})" if found is not None else ""


def _root(error: BaseException) -> str:
    """The innermost cause of a failure to connect, which is the part that says something."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
