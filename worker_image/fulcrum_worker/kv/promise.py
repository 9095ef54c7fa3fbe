"""What is left for the prefill of a request: its part of the TTFT promise, as the gateway told it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from fulcrum.api.names import TTFT_PARAM


def seconds_left(params: Mapping[str, object] | None, *, waited_seconds: float) -> float | None:
    """Seconds until the prefill is due, at least 0, of a request that reached the engine `waited_seconds` ago.

    `params` are its `kv_transfer_params`. None: they do not say when, or not in a finite number.
    """
    promised = params.get(TTFT_PARAM) if params is not None else None
    if isinstance(promised, bool) or not isinstance(promised, int | float) or not isfinite(promised):
        return None
    return max(promised - waited_seconds, 0.0)
