"""Outlier ejection: a worker that answers, but much slower or worse than its like, is left alone for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from fulcrum.api.names import Role

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView

_MEMORY: Final = 0.05
"""Weight of one observation in the running mean: about the last 20 count."""
_SMALL_SECONDS: Final = 0.005
"""Added to latencies before they are compared: a few milliseconds more do not make an outlier."""


@dataclass(frozen=True, kw_only=True)
class OutlierRule:
    """When a worker is an outlier."""

    factor: float = 3.0
    """Times the median of its like (of actual over predicted latency)."""
    failure_share: float = 0.3
    """Share of failed requests, 0 to 1, above which it is one whatever the others do."""
    min_samples: int = 20
    largest_share: float = 0.34
    """Most of its like that are ejected together, 0 to 1; the last one never is."""
    base_seconds: float = 10.0
    """Length of the first ejection; each further one is longer by as much, up to ten times."""


class _Health:
    __slots__ = ("answers", "ejections", "failures", "ratio", "ratios")

    def __init__(self) -> None:
        self.answers = 0
        """Requests that were answered, or failed."""
        self.failures = 0.0
        """Share of failed ones, of the last."""
        self.ratios = 0
        self.ratio = 1.0
        self.ejections = 0


class OutlierEjector:
    """Watches workers that are alike (one pool, one role)."""

    def __init__(self, rule: OutlierRule | None = None) -> None:
        self._rule = rule or OutlierRule()
        self._health: dict[str, _Health] = {}

    def observe(self, name: str, ratio: float) -> None:
        """One request on the worker `name`: its actual over its predicted latency. A sample of all will do."""
        health = self._health.setdefault(name, _Health())
        health.ratios += 1
        health.ratio += max(_MEMORY, 1 / health.ratios) * (ratio - health.ratio)

    def answered(self, name: str, count: int) -> None:
        """The worker answered `count` requests, well or badly but not with a failure."""
        health = self._health.setdefault(name, _Health())
        # A plain mean until there are as many as the memory holds.
        young = min(count, max(int(1 / _MEMORY) - health.answers, 0))
        if young:
            health.failures *= health.answers / (health.answers + young)
        health.failures *= (1 - _MEMORY) ** (count - young)
        health.answers += count

    def failed(self, name: str) -> None:
        """The worker failed a request."""
        health = self._health.setdefault(name, _Health())
        health.answers += 1
        health.failures += max(_MEMORY, 1 / health.answers) * (1 - health.failures)

    def forget(self, name: str) -> None:
        """The worker is gone, or is another process now."""
        self._health.pop(name, None)

    def eject(self, in_use: Iterable[str], out_of_use: int = 0) -> dict[str, float]:
        """Workers to leave alone now, with seconds; `in_use` are those that get requests, `out_of_use` how many do not.

        The caller takes them out of use (`Breaker.eject`); they start again with an empty record.
        """
        rule = self._rule
        names = list(in_use)
        allowed = min(int(rule.largest_share * (len(names) + out_of_use)) - out_of_use, len(names) - 1)
        if allowed <= 0:
            return {}
        failing = [name for name in names if self._failing(name)]
        timed = [name for name in names if name in self._health and self._health[name].ratios >= rule.min_samples]
        slow: list[str] = []
        if len(timed) > 1:
            usual = median(self._health[name].ratio for name in timed)
            slow = [name for name in timed if self._health[name].ratio > rule.factor * usual]
        worst = sorted({*failing, *slow}, key=lambda name: (-self._health[name].failures, -self._health[name].ratio))
        return {name: self._ejected(name) for name in worst[:allowed]}

    def _failing(self, name: str) -> bool:
        health = self._health.get(name)
        rule = self._rule
        return health is not None and health.answers >= rule.min_samples and health.failures > rule.failure_share

    def _ejected(self, name: str) -> float:
        before = self._health[name]
        fresh = self._health[name] = _Health()
        fresh.ejections = min(before.ejections + 1, 10)
        return self._rule.base_seconds * fresh.ejections


class Outliers:
    """The outliers of a whole cluster."""

    def __init__(self) -> None:
        self._ejectors: dict[tuple[str, Role], OutlierEjector] = {}
        """By pool and role: only these workers are alike."""

    def observe(self, worker: WorkerView, actual_seconds: float, predicted_seconds: float) -> None:
        """One latency of a request on `worker`."""
        ratio = (actual_seconds + _SMALL_SECONDS) / (predicted_seconds + _SMALL_SECONDS)
        self._of(worker).observe(worker.name, ratio)

    def answered(self, worker: WorkerView, count: int) -> None:
        """`worker` answered `count` requests."""
        self._of(worker).answered(worker.name, count)

    def failed(self, worker: WorkerView) -> None:
        """`worker` failed a request."""
        self._of(worker).failed(worker.name)

    def forget(self, worker: WorkerView) -> None:
        """`worker` is gone, or is another process now."""
        for ejector in self._ejectors.values():
            ejector.forget(worker.name)

    def find(self, workers: Collection[WorkerView]) -> list[tuple[WorkerView, float]]:
        """Outliers among all `workers`, with the seconds for which each is to be left alone."""
        found: list[tuple[WorkerView, float]] = []
        for (pool, role), ejector in self._ejectors.items():
            alike = {one.name: one for one in workers if one.role is role and one.pool == pool}
            in_use = [name for name, one in alike.items() if one.breaker.available]
            ejected = ejector.eject(in_use, len(alike) - len(in_use))
            found.extend((alike[name], seconds) for name, seconds in ejected.items())
        return found

    def _of(self, worker: WorkerView) -> OutlierEjector:
        key = (worker.pool, worker.role)
        found = self._ejectors.get(key)
        if found is None:
            found = self._ejectors[key] = OutlierEjector()
        return found
