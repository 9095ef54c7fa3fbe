"""From a trace file, or any requests, to what is replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fulcrum.simulation.traffic import azure, burstgpt, mooncake
from fulcrum.simulation.traffic.lines import header_of
from fulcrum.simulation.traffic.trace import Request, TraceError


def load_trace(path: Path) -> tuple[Request, ...]:
    """Requests of a trace file by arrival, the first at second 0.

    `.csv` is read as a BurstGPT trace if its columns are those, otherwise as an Azure LLM inference trace; `.jsonl` as
    a Mooncake trace. Raises TraceError.
    """
    requests = sorted(_read(path), key=lambda request: request.arrival_seconds)
    if not requests:
        raise TraceError(path, 1, "file", "holds no requests")
    first = requests[0].arrival_seconds
    return tuple(replace(request, arrival_seconds=request.arrival_seconds - first) for request in requests)


def _read(path: Path) -> Iterator[Request]:
    if path.suffix == ".jsonl":
        return mooncake.read(path)
    if path.suffix == ".csv":
        return burstgpt.read(path) if _is_burstgpt(path) else azure.read(path)
    raise TraceError(path, 0, "file name", "must end in .csv (Azure) or .jsonl (Mooncake); BurstGPT is .csv, too")


def _is_burstgpt(path: Path) -> bool:
    return set(burstgpt.FIELDS) <= set(header_of(path))


def prepared(
    requests: Iterable[Request],
    *,
    speed: float = 1.0,
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    max_output_tokens: int | None = None,
) -> tuple[Request, ...]:
    """The first `limit` requests, arriving `speed` times as fast, lengths cut to the maxima."""
    if not speed > 0:
        raise ValueError(f"speed must be above 0, got {speed}")
    return tuple(
        replace(
            request,
            arrival_seconds=request.arrival_seconds / speed,
            prompt_tokens=min(request.prompt_tokens, max_prompt_tokens or request.prompt_tokens),
            output_tokens=min(request.output_tokens, max_output_tokens or request.output_tokens),
        )
        for request in tuple(requests)[:limit]
    )
