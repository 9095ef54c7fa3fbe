"""A fixed number of prefill and decode workers: what a cluster without a planner does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.simulation.policies.fixed import Fixed


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """So many workers of each role."""

    prefill: int
    decode: int
    mixed: int = 0

    def roles(self) -> list[Role]:
        """Return one role per worker."""
        return [Role.PREFILL] * self.prefill + [Role.DECODE] * self.decode + [Role.MIXED] * self.mixed

    def __str__(self) -> str:
        return f"{self.prefill}P:{self.decode}D" if not self.mixed else f"{self.mixed}M"


class StaticSplit(Fixed):
    """P prefill and D decode workers, for ever; of one pool, or the decode workers of another."""

    def __init__(
        self,
        *,
        pool: str,
        prefill: int,
        decode: int,
        decode_pool: str | None = None,
        admission: AdmissionPolicy = AdmissionPolicy.OFF,
        classes: Sequence[QosClass] = (),
    ) -> None:
        if prefill < 1 or decode < 1:
            raise ValueError("a static split needs at least one worker of each role")
        workers = [(pool, Role.PREFILL)] * prefill + [(decode_pool or pool, Role.DECODE)] * decode
        super().__init__(workers, admission=admission, classes=classes)
        self.name = f"static {Split(prefill, decode)}"
