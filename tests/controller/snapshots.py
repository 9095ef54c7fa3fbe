"""The snapshot of what an API server told, with nothing else known."""

from __future__ import annotations

from datetime import UTC, datetime

from fulcrum.api.types import Gang, InferenceCluster
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.model_configs import ServedModel
from fulcrum.controller.observe import Answers, make_snapshot
from fulcrum.controller.observed import Observed
from fulcrum.controller.profiles import PoolProfiles
from fulcrum.controller.read_workers import read_workers
from fulcrum.controller.tick import Token
from fulcrum.decide import Snapshot
from fulcrum.decide.measurements import Measurements

NOTHING = Answers(
    token=Token(),
    lost=frozenset(),
    profiles=PoolProfiles(),
    model=ServedModel(facts=ModelFacts()),
    gang=Gang.OFF,
    gangs_missing={},
    preload=None,
)


def snapshot_of(
    observed: Observed,
    cluster: InferenceCluster,
    *,
    lost: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
    token_fingerprint: str | None = None,
) -> Snapshot:
    """As the operator makes it."""
    workers = read_workers(observed, cluster, frozenset(), lost=lost, token_fingerprint=token_fingerprint)
    return make_snapshot(
        observed,
        cluster,
        workers,
        NOTHING,
        now=datetime.now(UTC),
        loads={},
        acknowledged=frozenset(),
        taken=taken,
        refused={},
        model=None,
        model_note="",
        kv_dtype=None,
        measurements=Measurements(),
    )
