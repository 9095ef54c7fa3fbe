"""From a recording to the lines of a Mooncake trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum.admission import DEFAULT_CLASS
from fulcrum.api.record import Outcome, RecordedRequest
from fulcrum.simulation.traffic.recorded_blocks import RecordedBlocks

_NO_LENGTH: Final = {
    Outcome.UNREAD: "were turned away unread, so that their lengths are unknown",
    Outcome.INVALID: "could not be served by any worker (400)",
}
_NO_ANSWER: Final = {
    Outcome.REJECTED: "were turned away",
    Outcome.PENDING: "are still under way",
    Outcome.FAILED: "were broken off",
    Outcome.LEFT: "were broken off by their clients",
}


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    qos: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Lines of a trace, and what is not in them."""

    lines: tuple[bytes, ...]
    left_out: tuple[tuple[str, int], ...]
    """Why, and how many."""


def trace_of(
    requests: Sequence[RecordedRequest], key_ends: Sequence[int], *, assumed_output_tokens: int | None = None
) -> Trace:
    """Write requests (by arrival) as a Mooncake trace; `key_ends`: lengths of the prefixes in the prompt's units.

    Ids of blocks are numbered anew, so that two exports cannot be joined. A request whose answer is unknown, or was not
    ended, is left out, or has `assumed_output_tokens`, and no less than it had.
    """
    blocks, lines, left_out = RecordedBlocks(key_ends), [], Counter[str]()
    first_age: float | None = None
    for request in requests:
        why = _why_not(request, assumed_output_tokens)
        if why:
            left_out[why] += 1
            continue
        first_age = request.age_seconds if first_age is None else first_age
        output_tokens = request.output_tokens or 0
        if request.outcome is not Outcome.SERVED or request.output_tokens is None:
            output_tokens = max(output_tokens, assumed_output_tokens or 0)
        line = _Line(
            timestamp=max(round((first_age - request.age_seconds) * 1000), 0),
            input_length=max(request.prompt_tokens, 1),
            output_length=max(output_tokens, 1),
            hash_ids=blocks.of(request),
            qos=None if request.qos_class == DEFAULT_CLASS else request.qos_class,
        )
        lines.append(msgspec.json.encode(line))
    return Trace(lines=tuple(lines), left_out=tuple(left_out.most_common()))


def _why_not(request: RecordedRequest, assumed_output_tokens: int | None) -> str:
    if request.batch:
        return "are of a class of kind Batch, which is no load"
    if request.outcome in _NO_LENGTH:
        return _NO_LENGTH[request.outcome]
    if assumed_output_tokens is not None:
        return ""
    unknown = "have an answer of unknown length" if request.output_tokens is None else ""
    return _NO_ANSWER.get(request.outcome, unknown)
