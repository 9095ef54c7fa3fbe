"""The arithmetic of PodDisruptionBudgets."""

from __future__ import annotations

import math
from typing import Any

Json = dict[str, Any]


def desired_healthy(spec: Json, expected: int) -> int:
    """How many of `expected` Pods must stay healthy."""
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected))
    if spec.get("minAvailable") is not None:
        return _scaled(spec["minAvailable"], expected)
    return max(0, expected - 1)


def _scaled(value: Any, total: int) -> int:
    if isinstance(value, str):
        return math.ceil(int(value.removesuffix("%")) * total / 100)
    return int(value)
