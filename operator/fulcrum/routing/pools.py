"""Which requests each pool takes, by its `admits` and by the size of its KV cache. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from fulcrum.api.pool_types import PoolAdmits
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing.tuning import TUNING


class PoolRule:
    """Which requests a pool takes, now or later."""

    def __init__(self, admits: PoolAdmits | None, kv_capacity_tokens: float, class_names: Sequence[str]) -> None:
        """`kv_capacity_tokens` of its largest worker, 0 while unknown."""
        self.min_prompt_tokens = 0.0
        self.longest_tokens = kv_capacity_tokens / TUNING.prompt_error if kv_capacity_tokens else inf
        """The longest prompt that it takes, and that its KV cache can hold."""
        self.classes: frozenset[int] | None = None
        """Indices of the classes that it takes; None: all."""
        if admits is not None:
            self.min_prompt_tokens = float(admits.min_prompt_tokens or 0)
            if admits.max_prompt_tokens is not None:
                self.longest_tokens = min(self.longest_tokens, float(admits.max_prompt_tokens))
            if admits.classes:
                self.classes = frozenset(index for index, name in enumerate(class_names) if name in admits.classes)

    def takes(self, prompt_tokens: float, qos: int) -> bool:
        """Whether the pool takes a request."""
        return self.min_prompt_tokens <= prompt_tokens <= self.longest_tokens and (
            self.classes is None or qos in self.classes
        )


class Pools:
    """All pools of the cluster, with or without workers."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.admits: Mapping[str, PoolAdmits] = {}
        self.speeds: dict[str, WorkerSpeed] = {}
        self._names: frozenset[str] = frozenset()

    def set(self, admits: Mapping[str, PoolAdmits | None]) -> None:
        """All pools, and which requests each takes; one that is not named, or None, takes every one."""
        self._names = frozenset(admits)
        self.admits = {pool: rule for pool, rule in admits.items() if rule is not None}

    def any_takes(self, also: Iterable[str], prompt_tokens: float, qos: int) -> bool:
        """Whether any pool, those in `also` included, takes such a request once it has a worker."""
        for pool in self._names.union(also):
            speed = self.speeds.get(pool)
            capacity = float(speed.kv_capacity_tokens) if speed is not None else 0.0
            if PoolRule(self.admits.get(pool), capacity, self.class_names).takes(prompt_tokens, qos):
                return True
        return False
