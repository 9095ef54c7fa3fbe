"""Whether KV is worth its way from the pool, and when a load that turns out slow is given up. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import How, LinkRate, restore

_PRIOR_BYTES_PER_SECOND: Final = 1e9
"""What a volume on a network gives, until a load was seen."""
_RETRY_SECONDS: Final = 60.0
"""A pool that was too slow is tried again after this time; a try costs at most `_LEAST_SHARE` of computing."""
_LEAST_SHARE: Final = 0.1
"""Share of the time of computing that a load may take before its first blocks tell of the link."""
_LEAST_SECONDS: Final = 0.05
"""What a load may take in any case: a volume on a network answers in some milliseconds, and a busy machine is no slow
pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The part of a prompt that is in the pool, in tokens."""

    present: int
    matched: int
    prompt: int


class PoolPace:
    """What is known of the pool's speed, beside that of the engine."""

    def __init__(
        self, *, bytes_per_token: float, speed: Callable[[], SpeedCoefficients | None], clock: Callable[[], float]
    ) -> None:
        self._speed = speed
        self._clock = clock
        prior = TransferCost(base_seconds=0.0, seconds_per_token=bytes_per_token / _PRIOR_BYTES_PER_SECOND)
        self._link = LinkRate(prior)
        self._tried = -math.inf

    def learn(self, *, tokens: int, seconds: float) -> None:
        """Take note of a load."""
        self._link.learn(tokens=tokens, seconds=seconds)

    def is_worth(self, wanted: Wanted, *, after: TransferCost) -> bool:
        """Report whether to load; `after` is the way on from host memory. Now and then a slow pool is tried again.

        Never while the engine's speed is not known: nothing would say when a load is late.
        """
        speed, matched = self._speed(), min(wanted.matched, wanted.prompt - 1)
        if speed is None:
            return False
        if matched <= wanted.present:
            return True
        link = self._link.predict()
        way = restore(
            present_tokens=wanted.present,
            matched_tokens=matched,
            prompt_tokens=wanted.prompt,
            speed=speed,
            link=TransferCost(
                base_seconds=link.base_seconds + after.base_seconds,
                seconds_per_token=link.seconds_per_token + after.seconds_per_token,
            ),
            front=False,
        )
        now = self._clock()
        if way.how is How.LOAD or now - self._tried >= _RETRY_SECONDS:
            self._tried = now
            return True
        return False

    def is_late(self, wanted: Wanted, *, moved_share: float, seconds: float) -> bool:
        """Report whether to give up a load that has run for `seconds`: computing what is missing is quicker.

        At its own pace the rest would take `seconds / moved_share * (1 - moved_share)`; computing it takes its share
        of the whole. So a load that is given up has cost no more than the computing that it saved, than `_LEAST_SHARE`
        of it, or than `_LEAST_SECONDS`.
        """
        speed = self._speed()
        if speed is None:
            return True
        alone = restore(
            present_tokens=wanted.present,
            matched_tokens=wanted.present,
            prompt_tokens=max(wanted.matched, wanted.present + 1),
            speed=speed,
            link=self._link.predict(),
        ).predicted_seconds
        return seconds > max(max(moved_share, _LEAST_SHARE) * alone, _LEAST_SECONDS)
