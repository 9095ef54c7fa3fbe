"""Where a cluster's load is read: its Prometheus where the spec names one, else its gateways."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from fulcrum.api.names import LABEL_PROMETHEUS_ACCESS
from fulcrum.api.types import BalanceMode, InferenceClusterSpec
from fulcrum.controller.kube import ApiFailure
from fulcrum.decide.tuning import TUNING
from fulcrum.load.traffic import traffic_window_seconds
from fulcrum.telemetry.prometheus_access import PrometheusAccess
from fulcrum.telemetry.prometheus_calls import PrometheusCalls
from fulcrum.telemetry.prometheus_source import PrometheusSource
from fulcrum.telemetry.scrape_source import ScrapeSource
from fulcrum.telemetry.source import ClusterRef, TelemetrySource, Unknown
from fulcrum.telemetry.turns import Turns

SECRET_SECONDS: Final = 60.0
"""How long what a Secret held is used before it is read again."""
UNUSED_SECONDS: Final = 120.0
"""How long a source is kept that no cluster asks for: longer than any cluster waits between two questions."""
TICK_SECONDS: Final = TUNING.tick_seconds
"""How often a cluster is looked at whose ratio is decided here."""
FORECASTS_AT_ONCE: Final = 1
"""Forecasts that are fitted at a time: a fit takes a whole core, and Python's warning filters hold for all threads."""
COMPARISONS_AT_ONCE: Final = 1
"""Searches for a better plan that run at a time: each takes a whole core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often traffic is read, and over which window."""

    every_seconds: float
    window_seconds: float


_SHOWN_WINDOW_SECONDS: Final = 60.0
# Two scrapes fit into the source's grace, so that a lost one is bridged; no decision rests on them, so they are rare.
_SCRAPED_TO_SHOW: Final = Pace(every_seconds=7.0, window_seconds=_SHOWN_WINDOW_SECONDS)
_QUERIED_TO_SHOW: Final = Pace(every_seconds=15.0, window_seconds=_SHOWN_WINDOW_SECONDS)
SHOWN_LOAD_SECONDS: Final = 30.0
"""How often agents are asked in Manual, where only speeds are learnt from them: a fleet has 10,000 of them."""
QUERIES_EVERY_SECONDS: Final = 5.0


def decides(spec: InferenceClusterSpec) -> bool:
    """Report whether the balance reads load at all: in Manual it is only shown."""
    return spec.balance.mode is not BalanceMode.MANUAL


def pace_of(spec: InferenceClusterSpec) -> Pace:
    """Return how often the traffic of a cluster is read."""
    queried = spec.metrics.prometheus is not None
    if not decides(spec):
        return _QUERIED_TO_SHOW if queried else _SCRAPED_TO_SHOW
    return Pace(
        every_seconds=QUERIES_EVERY_SECONDS if queried else TICK_SECONDS, window_seconds=traffic_window_seconds(spec)
    )


def name_of(spec: InferenceClusterSpec) -> str:
    """Return the kind of source, for metric labels."""
    return "prometheus" if spec.metrics.prometheus is not None else "scrape"


ReadSecret = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""From namespace and name to the Secret; None when there is none. Raises ApiFailure."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A source whose Secret cannot be read: nothing is known."""

    reason: str

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> Unknown:
        return Unknown(self.reason)

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Unknown:
        return Unknown(self.reason)


@dataclass(slots=True, kw_only=True)
class _Opened:
    source: PrometheusSource | _Unreadable
    read_at: float
    """When its Secret was read."""
    used_at: float


class Sources:
    """The sources of all clusters. Use as an async context manager.

    A Secret with a Prometheus server's token is read again after a minute: tokens are rotated. A source that no cluster
    asks for any more is forgotten: specs are edited, and each URL is another source.
    """

    def __init__(self, read_secret: ReadSecret, clock: Callable[[], float] = time.monotonic) -> None:
        self._read_secret = read_secret
        self._clock = clock
        self.scrape = ScrapeSource()
        self.forecasts = Turns(FORECASTS_AT_ONCE)
        """Fits take whole cores; reconciles must not wait for the interpreter. Namespaces take turns."""
        self.comparisons = Turns(COMPARISONS_AT_ONCE)
        """Searches for a better plan take longer than a forecast may wait."""
        self._prometheus: dict[tuple[str, str, str], _Opened] = {}
        """By URL, and namespace and name of the Secret."""
        self._calls = PrometheusCalls()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.scrape)
        await self._stack.enter_async_context(self._calls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def of(self, spec: InferenceClusterSpec, namespace: str) -> TelemetrySource:
        """Return the source that the spec of a cluster in `namespace` asks for."""
        prometheus = spec.metrics.prometheus
        if prometheus is None:
            return self.scrape
        secret, now = prometheus.secret_name, self._clock()
        key = (prometheus.url, namespace if secret else "", secret or "")
        self._prometheus = {k: each for k, each in self._prometheus.items() if now - each.used_at < UNUSED_SECONDS}
        opened = self._prometheus.get(key)
        if opened is not None and (secret is None or now - opened.read_at < SECRET_SECONDS):
            opened.used_at = now
            return opened.source
        access = PrometheusAccess() if secret is None else await self._access(namespace, secret)
        source: PrometheusSource | _Unreadable
        if isinstance(access, str):
            source = _Unreadable(access)
        elif opened is not None and isinstance(opened.source, PrometheusSource):
            source = opened.source
            source.access = access
        else:
            source = PrometheusSource(prometheus.url, access, calls=self._calls)
        self._prometheus[key] = _Opened(source=source, read_at=now, used_at=now)
        return source

    async def _access(self, namespace: str, name: str) -> PrometheusAccess | str:
        """Return what a Secret holds, or why nothing is known of it."""
        where = f"The Secret {namespace}/{name} of metrics.prometheus.secretName"
        try:
            secret = await self._read_secret(namespace, name)
        except ApiFailure as error:
            return (
                f"{where} cannot be read ({error}); let the operator's service account get it: apply the roles of this "
                "release (docs/operations/security.md)."
            )
        if secret is None:
            return f"{where} does not exist; create it with the keys token and ca.crt, or one of them."
        if (secret["metadata"].get("labels") or {}).get(LABEL_PROMETHEUS_ACCESS) != "true":
            # Who writes the spec also names the server: any Secret's token would go wherever they like.
            return f"{where} is not meant for it: kubectl label secret {name} {LABEL_PROMETHEUS_ACCESS}=true."
        try:
            values = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        except (UnicodeDecodeError, ValueError):
            return f"{where} holds no text; create it with the keys token and ca.crt, or one of them."
        token, ca_pem = values.get("token", "").strip() or None, values.get("ca.crt") or None
        if token is None and ca_pem is None:
            return f"{where} has neither the key token nor the key ca.crt."
        return PrometheusAccess(token=token, ca_pem=ca_pem)
