"""Workers as in examples/auto.yaml, on two cores: a prompt takes about a second, and two requests decode together."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets

SPEED: Final = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0, prefill_b=0.0056, prefill_c=4e-6, decode_a=0.12, decode_b=0.0066, decode_c=1.2e-4
    ),
    kv_capacity_tokens=20_000,
    max_batched_tokens=2048,
    max_batch=2,
    transfer_base_seconds=0.03,
)
SLOW_PROMPT_TOKENS: Final = 500
SLOW_SPEED: Final = replace(
    SPEED,
    coefficients=SpeedCoefficients(
        prefill_a=0.25, prefill_b=0.025, prefill_c=0.0, decode_a=0.2, decode_b=0.02, decode_c=8e-5
    ),
)
"""The same in float32 on a CPU without AVX-512: a prompt of `SLOW_PROMPT_TOKENS` takes four times the promise."""
SLO: Final = LatencyTargets(ttft_seconds=3.0, tpot_seconds=0.3, attainment=0.95)
