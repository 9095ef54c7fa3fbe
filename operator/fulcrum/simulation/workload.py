"""The requests of a simulation, in columns: a million of them are a few arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fulcrum.simulation.traffic import Request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Requests by arrival; all columns have one element per request."""

    arrival_seconds: NDArray[np.float64]
    """Ascending, the first one usually 0."""
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    qos_class: NDArray[np.int16]
    """Index into `classes`."""
    classes: tuple[str | None, ...] = (None,)
    prefix_ids: tuple[tuple[int, ...], ...] | None = None
    """Per request one id for each block of 512 prompt tokens (as Mooncake's `hash_ids`); None: no prefix is shared."""

    def __post_init__(self) -> None:
        count = len(self.arrival_seconds)
        if not count == len(self.prompt_tokens) == len(self.output_tokens) == len(self.qos_class):
            raise ValueError("the columns of a workload must be of equal length")
        if self.prefix_ids is not None and len(self.prefix_ids) != count:
            raise ValueError("prefix_ids must have one element per request")
        if count and (np.any(np.diff(self.arrival_seconds) < 0) or self.arrival_seconds[0] < 0):
            raise ValueError("arrival_seconds must ascend from 0 or later")
        if count and (self.prompt_tokens.min() < 1 or self.output_tokens.min() < 1):
            raise ValueError("prompt_tokens and output_tokens must be at least 1")

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_seconds)

    @property
    def duration_seconds(self) -> float:
        """Return the arrival of the last request."""
        return float(self.arrival_seconds[-1]) if len(self) else 0.0

    @classmethod
    def of(cls, requests: Iterable[Request]) -> Workload:
        """Return the columns of `requests`, which need not be in order."""
        ordered = sorted(requests, key=lambda request: request.arrival_seconds)
        names = sorted({request.qos_class for request in ordered}, key=lambda name: name or "")
        number = {name: index for index, name in enumerate(names)}
        shared = any(request.prefix_hash_ids for request in ordered)
        return cls(
            arrival_seconds=np.array([request.arrival_seconds for request in ordered], dtype=np.float64),
            prompt_tokens=np.array([request.prompt_tokens for request in ordered], dtype=np.int32),
            output_tokens=np.array([request.output_tokens for request in ordered], dtype=np.int32),
            qos_class=np.array([number[request.qos_class] for request in ordered], dtype=np.int16),
            classes=tuple(names) or (None,),
            prefix_ids=tuple(request.prefix_hash_ids for request in ordered) if shared else None,
        )

    def scaled(self, speed: float) -> Workload:
        """Return the same requests, arriving `speed` times as fast."""
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        return replace(self, arrival_seconds=self.arrival_seconds / speed)

    def between(self, start_seconds: float, end_seconds: float) -> Workload:
        """Return the requests that arrive from `start_seconds` to before `end_seconds`, with the start as second 0."""
        inside = (self.arrival_seconds >= start_seconds) & (self.arrival_seconds < end_seconds)
        part = self.at(inside)
        return replace(part, arrival_seconds=part.arrival_seconds - start_seconds)

    def at(self, chosen: NDArray[Any]) -> Workload:
        """Return the requests that the mask or the ascending indices `chosen` pick."""
        indices = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        ids = self.prefix_ids
        return replace(
            self,
            arrival_seconds=self.arrival_seconds[indices],
            prompt_tokens=self.prompt_tokens[indices],
            output_tokens=self.output_tokens[indices],
            qos_class=self.qos_class[indices],
            prefix_ids=tuple(ids[index] for index in indices) if ids is not None else None,
        )


def merged(workloads: Sequence[Workload]) -> Workload:
    """Return all requests of `workloads` together, by arrival. Prefix ids are taken as one name space."""
    names = sorted({name for each in workloads for name in each.classes}, key=lambda name: name or "")
    number = {name: index for index, name in enumerate(names)}
    order = np.argsort(np.concatenate([each.arrival_seconds for each in workloads]), kind="stable")
    classes = [np.array([number[name] for name in each.classes], dtype=np.int16)[each.qos_class] for each in workloads]
    shared = any(each.prefix_ids is not None for each in workloads)
    ids = [ids for each in workloads for ids in (each.prefix_ids or ((),) * len(each))] if shared else []
    return Workload(
        arrival_seconds=np.concatenate([each.arrival_seconds for each in workloads])[order],
        prompt_tokens=np.concatenate([each.prompt_tokens for each in workloads])[order],
        output_tokens=np.concatenate([each.output_tokens for each in workloads])[order],
        qos_class=np.concatenate(classes)[order],
        classes=tuple(names),
        prefix_ids=tuple(ids[index] for index in order) if shared else None,
    )
