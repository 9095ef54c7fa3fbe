"""Spec, the part about schedulers: how all Pods of a worker on several nodes are placed at once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from fulcrum.api.base import ApiStruct, ObjectName, Rules, rule


class Gang(StrEnum):
    AUTO = "Auto"
    VOLCANO = "Volcano"
    KUEUE = "Kueue"
    OFF = "Off"


class Scheduling(ApiStruct, frozen=True, kw_only=True):
    """How workers on several nodes (`pools[].gpu.perNode`) are scheduled. A change restarts none."""

    gang: Annotated[
        Gang,
        Meta(
            description="What places all Pods of such a worker at once, or none. Volcano: its scheduler, by a PodGroup "
            "for each worker. Kueue: by the label with the queue's name on each LeaderWorkerSet. Off: each Pod by "
            "itself. Auto: Volcano where the API server has its kinds, else Kueue where it has those and `queue` is "
            "set, else Off, and the condition Progressing says so."
        ),
    ] = Gang.AUTO
    queue: Annotated[
        ObjectName | None,
        Meta(description="Queue of Volcano (default: its queue `default`), or LocalQueue of Kueue."),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "self.gang != 'Kueue' || has(self.queue)",
            "scheduling.queue: Kueue admits what names a LocalQueue; set queue, or another gang",
        ),
    )
