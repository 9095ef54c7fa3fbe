"""What the workers of a cluster report of their model, where neither tables nor a ConfigMap describe it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fulcrum.api.worker import LoadReport
from fulcrum.capacity.config_fields import ModelConfigError
from fulcrum.capacity.model_facts import ModelFacts, facts_of_config, facts_of_name
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.rollout import standing_workers

logger = logging.getLogger(__name__)


class ReportedModel:
    """One cluster's model. It may be lost: workers report it again."""

    def __init__(self) -> None:
        self._served: tuple[str, str | None] | None = None
        """Name and revision of the model that `_facts` are of."""
        self._document: dict[str, Any] | None = None
        self._facts = ModelFacts()

    def model(self, cluster: WatchedCluster) -> ModelFacts:
        """Return what is known of the model, by its workers where nothing else says it."""
        known = _known(cluster)
        return known.or_else(self._facts) if self._served == _served(cluster) else known

    def see(self, cluster: WatchedCluster, reports: Mapping[str, LoadReport | None]) -> None:
        """Take in the reports of workers by name."""
        if _known(cluster).complete:
            return
        # A worker of another revision may serve another model.
        for worker in standing_workers(cluster.name, cluster.spec, cluster.workers):
            report = reports.get(worker.name)
            if report is None or report.model_config is None:
                continue
            if (self._served, self._document) != (_served(cluster), report.model_config):
                self._served, self._document = _served(cluster), report.model_config
                self._facts = _read(cluster.spec.model.name, report.model_config)
            return


def _known(cluster: WatchedCluster) -> ModelFacts:
    return cluster.model or facts_of_name(cluster.spec.model.name)


def _served(cluster: WatchedCluster) -> tuple[str, str | None]:
    return cluster.spec.model.name, cluster.spec.model.revision


def _read(name: str, document: dict[str, Any]) -> ModelFacts:
    try:
        return facts_of_config(document).named(name)
    except ModelConfigError as error:
        logger.warning("reported_model_unusable model=%s error=%r", name, str(error))
        return ModelFacts()
