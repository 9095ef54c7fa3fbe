"""What vLLM's API server was told of the tiers: it keeps gauges, so those that did not move are not sent again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToldStats:
    """Remembers the gauges that were sent last."""

    def __init__(self) -> None:
        self._gauges: dict[str, dict[Any, float]] = {}

    def is_news(self, stats: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether something was counted, or a gauge has moved.

        `stats` is the data of vLLM's `OffloadingConnectorStats`: `types` of metrics, and under `data` what each is.
        """
        types = stats["types"]
        gauges = {name: dict(found) for name, found in stats["data"].items() if types[name] == "gauge"}
        if len(gauges) == len(types) and gauges == self._gauges:
            return False
        self._gauges = gauges
        return True
