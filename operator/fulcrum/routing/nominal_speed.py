"""The speed of a worker of which none is known. Pure."""

from __future__ import annotations

from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed

NOMINAL_SPEED: Final = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.01, prefill_b=1e-4, prefill_c=0.0, decode_a=0.02, decode_b=1e-4, decode_c=1e-7
    ),
    kv_capacity_tokens=0,
    source=SpeedSource.ROOFLINE,
)
"""Stands in while a worker's speed is unknown: enough to compare workers by, never to promise anything by."""
