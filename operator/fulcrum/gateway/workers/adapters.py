"""LoRA adapters as a gateway knows them: which the spec lists, and which workers have them loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import product
from typing import Final

from fulcrum.api.worker import AdapterReport, AdapterSource, AdapterState
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.workers.registry import KnownWorker, WorkerRegistry

_CODES: Final = (200, 429, 503)
"""Codes whose series begin at 0 with an adapter: `rate()` misses the first count of a later one."""
logger = logging.getLogger(__name__)


class Adapters:
    """`name in adapters`: whether a client may ask for it."""

    def __init__(self, registry: WorkerRegistry, metrics: Metrics, *, enabled: bool) -> None:
        """`enabled`: the engines take adapters."""
        self.enabled = enabled
        self.listed: dict[str, AdapterSource] = {}
        """Those of the spec, by name."""
        self._known = not enabled
        self._registry = registry
        self._metrics = metrics

    def __contains__(self, name: object) -> bool:
        # Until the list was read any name may be in it: such a request is answered 503, and comes again.
        return name in self.listed or not self._known

    def take(self, adapters: Iterable[AdapterSource]) -> None:
        """The spec lists these."""
        listed = {each.name: each for each in adapters} if self.enabled else {}
        self._known = True
        if listed == self.listed:
            return
        logger.info("adapters_listed names=%s", ",".join(listed) or "-")
        self.listed = listed
        counted = self._metrics.adapter_requests
        for label in [label for label in counted if label[0] not in listed]:
            del counted[label]
        for name, code in product(listed, _CODES):
            counted[name, code] += 0
        for worker in self._registry.workers:
            self.heard(worker)

    def heard(self, worker: KnownWorker) -> None:
        """Its agent has reported; without a report what it had loaded stays."""
        if self.enabled and worker.report is not None:
            reports = worker.report.adapters
            loaded = frozenset(each.name for each in reports if self._serves(each))
            broken = frozenset(each.name for each in reports if each.lasting and self._is_listed(each))
            self._registry.cluster.workers.set_adapters(worker.name, loaded, broken)

    def _serves(self, report: AdapterReport) -> bool:
        """Whether requests of this name can go there: of one that is listed, only to the weights that are listed."""
        if report.state not in (AdapterState.LOADED, AdapterState.LEAVING):
            return False
        return report.name not in self.listed or self._is_listed(report)

    def _is_listed(self, report: AdapterReport) -> bool:
        """Whether it is of the weights that the spec lists."""
        wanted = self.listed.get(report.name)
        return wanted is not None and wanted.key == report.key
