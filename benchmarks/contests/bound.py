"""How many requests no planner could serve inside the SLO more of, whatever it knows: a fluid bound."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.capacity.decode_curve import decode_line, decode_steps
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.workload import Workload

Floats = NDArray[np.float64]

WINDOWS_SECONDS: Final = (120.0, 300.0, 600.0, 1800.0)


def most_within(workload: Workload, speed: WorkerSpeed, workers: int, slo: LatencyTargets) -> int:
    """Return an upper bound on the requests that `workers` alike can serve inside `slo`.

    Every relaxation is in favour of the planner: roles flip freely and continuously, work is divided without
    remainder, all workers share one prefix cache without end, transfers are free. What is left is work: a prompt costs
    its own part of a step, a token its part of the best decode step that keeps the TPOT; a window's requests are done
    with within it and their residence. In each window the cheapest requests are served first. The least over several
    lengths of windows counts.
    """
    k = speed.coefficients
    prompts, outputs = workload.prompt_tokens.astype(np.float64), workload.output_tokens.astype(np.float64)
    cached = _cached(workload)
    prefill = k.prefill_b * (prompts - cached) + k.prefill_c * (prompts**2 - cached**2)
    gaps = outputs - 1
    idle, each, per_context = _fastest_line(speed, slo.tpot_seconds)
    per_token = each + per_context * (prompts + outputs / 2)
    spare = slo.tpot_seconds - idle
    share = slo.tpot_seconds / spare if spare > 0 else np.inf
    with np.errstate(invalid="ignore"):
        decode = np.where(gaps > 0, gaps * per_token * share, 0.0)
    work = prefill + decode
    possible = (k.prefill_a + prefill <= slo.ttft_seconds) & np.isfinite(work)
    possible &= (gaps < 1) | (idle + per_token <= slo.tpot_seconds)
    residence = slo.ttft_seconds + gaps * slo.tpot_seconds
    counts = [int(possible.sum())]
    for window_seconds in (*WINDOWS_SECONDS, workload.duration_seconds + 1):
        window = (workload.arrival_seconds // window_seconds).astype(np.int64)
        total = 0
        for number in np.unique(window):
            inside = possible & (window == number)
            if inside.any():
                room = workers * (window_seconds + float(residence[inside].max()))
                total += int(np.searchsorted(np.cumsum(np.sort(work[inside])), room, side="right"))
        counts.append(total)
    return min(counts)


def _fastest_line(speed: WorkerSpeed, tpot_seconds: float) -> tuple[float, float, float]:
    """Return a, b, c of a line that no decode step within the TPOT is below."""
    batches, steps = zip(*decode_steps(speed.coefficients, 0.0, speed.max_batch), strict=True)
    within = max(sum(step <= tpot_seconds for step in steps), 2)
    b = (steps[within - 1] - steps[0]) / max(batches[within - 1], 1e-9)
    a = min(step - b * batch for batch, step in zip(batches, steps, strict=True))
    return max(a, 0.0), b, min(decode_line(speed.coefficients, batch)[2] for batch in batches)


def _cached(workload: Workload) -> Floats:
    """Prompt tokens that some earlier request had in front of its own prompt, too; never the whole prompt."""
    cached = np.zeros(len(workload))
    if workload.prefix_ids is None:
        return cached
    seen: set[int] = set()
    for index, ids in enumerate(workload.prefix_ids):
        hits = next((count for count, each in enumerate(ids) if each not in seen), len(ids))
        cached[index] = min(hits * PREFIX_BLOCK_TOKENS, int(workload.prompt_tokens[index]) - 1)
        seen.update(ids)
    return cached
