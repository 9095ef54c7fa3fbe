"""Outlier ejection: a worker that answers, but much slower or worse than its like, is left alone for a while."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

_MEMORY: Final = 0.05
"""Weight of one observation in the running mean: about the last 20 count."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    __slots__ = ("ejections", "failures", "ratio", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.ratio = 1.0
        self.failures = 0.0
        self.ejections = 0


class OutlierEjector:
    """Watches workers that are alike (one pool, one role)."""

    def __init__(self, rule: OutlierRule | None = None) -> None:
        self._rule = rule or OutlierRule()
        self._health: dict[str, _Health] = {}

    def observe(self, name: str, *, ratio: float | None, failed: bool = False) -> None:
        """One request on the worker `name`: its actual over its predicted latency (None: unknown), or its failure."""
        health = self._health.setdefault(name, _Health())
        health.samples += 1
        weight = max(_MEMORY, 1 / health.samples)
        health.failures += weight * (failed - health.failures)
        if ratio is not None:
            health.ratio += weight * (ratio - health.ratio)

    def forget(self, name: str) -> None:
        """The worker is gone, or is another process now."""
        self._health.pop(name, None)

    def eject(self, in_use: Iterable[str], out_of_use: int = 0) -> dict[str, float]:
        """Workers to leave alone now, with seconds; `in_use` are those that get requests, `out_of_use` how many do not.

        The caller takes them out of use (`Breaker.eject`); they start again with an empty record.
        """
        rule = self._rule
        names = list(in_use)
        known = {name: self._health[name] for name in names if self._samples(name) >= rule.min_samples}
        allowed = min(int(rule.largest_share * (len(names) + out_of_use)) - out_of_use, len(names) - 1)
        if allowed <= 0 or len(known) < 2:
            return {}
        usual = median(health.ratio for health in known.values())
        worst = sorted(known, key=lambda name: (known[name].failures, known[name].ratio), reverse=True)
        bad = [n for n in worst if known[n].failures > rule.failure_share or known[n].ratio > rule.factor * usual]
        return {name: self._ejected(name) for name in bad[:allowed]}

    def _samples(self, name: str) -> int:
        health = self._health.get(name)
        return 0 if health is None else health.samples

    def _ejected(self, name: str) -> float:
        before = self._health[name]
        fresh = self._health[name] = _Health()
        fresh.ejections = min(before.ejections + 1, 10)
        return self._rule.base_seconds * fresh.ejections
