"""From a recording to the lines of a Mooncake trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum.api.record import Outcome, RecordedRequest
from fulcrum.simulation.traffic.recorded_blocks import prefix_blocks

MOST_BLOCKS: Final = 1 << 21
"""Bounds the ids of prefix blocks of a trace, which take 40 bytes each until they are written. They are enough for
1.07 billion tokens of prompts: the oldest requests beyond that, and a prompt that is longer by itself, have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why a request is not in a trace."""

    text: str
    load: bool = True
    """Without it the trace shows less load than there was."""
    has_prompt: bool = True
    """Only its answer is unknown: with an assumed one it can be written."""


_UNREAD: Final = LeftOut(text="were turned away unread, so that their lengths are unknown", has_prompt=False)
_BATCH: Final = LeftOut(text="are of a class of kind Batch, which is no load", load=False)
_INVALID: Final = LeftOut(text="could not be served by any worker (400)", load=False)
_UNKNOWN: Final = LeftOut(text="have an answer of unknown length")
_NO_ANSWER: Final = {
    Outcome.REJECTED: LeftOut(text="were turned away"),
    Outcome.PENDING: LeftOut(text="are still under way"),
    Outcome.FAILED: LeftOut(text="were broken off"),
    Outcome.LEFT: LeftOut(text="were broken off by their clients"),
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
    left_out: tuple[tuple[LeftOut, int], ...] = ()
    """Why, and how many."""
    without_blocks: int = 0
    """Requests whose `hash_ids` would be more than `MOST_BLOCKS`, with those of younger requests."""

    @property
    def missing_load(self) -> int:
        """Requests that were load and are not in it."""
        return sum(count for reason, count in self.left_out if reason.load)

    @property
    def assumable(self) -> int:
        """Requests that an assumed length of answers would add."""
        return sum(count for reason, count in self.left_out if reason.load and reason.has_prompt)


def trace_of(
    requests: Sequence[RecordedRequest],
    key_ends: Sequence[int],
    *,
    assumed_output_tokens: int | None = None,
    has_classes: bool = True,
) -> Trace:
    """Write requests (by arrival) as a Mooncake trace; `key_ends`: lengths of the prefixes in the prompt's units.

    Ids of blocks are numbered anew, so that two exports cannot be joined. A request whose answer is unknown, or was not
    ended, is left out, or has `assumed_output_tokens`, and no less than it had. `has_classes`: lines name the class.
    """
    written, left_out = [], Counter[LeftOut]()
    for request in requests:
        reason = _why_not(request, assumed_output_tokens)
        if reason is None:
            written.append(request)
        else:
            left_out[reason] += 1
    lines, without_blocks = [], 0
    blocks = prefix_blocks(written, key_ends, most_blocks=MOST_BLOCKS)
    for request, hash_ids in zip(written, blocks, strict=True):
        output_tokens = request.output_tokens or 0
        if request.outcome is not Outcome.SERVED or request.output_tokens is None:
            output_tokens = max(output_tokens, assumed_output_tokens or 0)
        line = _Line(
            timestamp=max(round((written[0].age_seconds - request.age_seconds) * 1000), 0),
            input_length=max(request.prompt_tokens, 1),
            output_length=max(output_tokens, 1),
            hash_ids=hash_ids,
            qos=request.qos_class if has_classes else None,
        )
        lines.append(msgspec.json.encode(line))
        without_blocks += not hash_ids
    return Trace(lines=tuple(lines), left_out=tuple(left_out.most_common()), without_blocks=without_blocks)


def _why_not(request: RecordedRequest, assumed_output_tokens: int | None) -> LeftOut | None:
    if request.outcome is Outcome.UNREAD:
        return _UNREAD
    if request.batch:
        return _BATCH
    if request.outcome is Outcome.INVALID:
        return _INVALID
    if assumed_output_tokens is not None:
        return None
    return _NO_ANSWER.get(request.outcome, _UNKNOWN if request.output_tokens is None else None)
