"""Mooncake traces (JSON lines): timestamp in milliseconds, input_length, output_length, hash_ids.

`qos`, the name of a class, is of our own; `fulcrum record` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from fulcrum.simulation.traffic.lines import lines_of
from fulcrum.simulation.traffic.trace import Request, Span, TraceError, positive_int

PREFIX_BLOCK_TOKENS: Final = 512
"""Prompt tokens behind one hash id (Mooncake, FAST'25, section 4)."""


LARGEST_ID: Final = (1 << 62) - 1
"""Rehearsals give ids above this to prefixes of their own."""


class _Line(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int | float
    output_length: int | float
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)], ...] = ()
    qos: Annotated[str, msgspec.Meta(min_length=1, max_length=63)] | None = None


def read(path: Path) -> Iterator[Request]:
    """Requests in file order, `arrival_seconds` as the file has it. Raises TraceError."""
    decoder, span = msgspec.json.Decoder(_Line), Span(path, "timestamp")
    for number, text in enumerate(lines_of(path), start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.ValidationError as error:
            raise TraceError(path, number, *_field_and_problem(str(error))) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceError(path, number, "line", f"not JSON: {error}") from None
        if line.timestamp < 0:
            raise TraceError(path, number, "timestamp", f"expected at least 0 ms, got {line.timestamp}")
        prompt_tokens = positive_int(path, number, "input_length", line.input_length)
        if len(line.hash_ids) * PREFIX_BLOCK_TOKENS >= prompt_tokens + PREFIX_BLOCK_TOKENS:
            raise TraceError(
                path, number, "hash_ids", f"{len(line.hash_ids)} blocks are more than {prompt_tokens} tokens fill"
            )
        yield Request(
            arrival_seconds=span.checked(number, line.timestamp / 1000),
            prompt_tokens=prompt_tokens,
            output_tokens=positive_int(path, number, "output_length", line.output_length),
            prefix_hash_ids=line.hash_ids,
            qos_class=line.qos,
        )


def _field_and_problem(message: str) -> tuple[str, str]:
    """Takes msgspec's message apart: ``Expected `int`, got `str` - at `$.input_length` ``."""
    problem, _, place = message.partition(" - at `$.")
    if place:
        return place.rstrip("`"), problem
    if "missing required field" in message:
        return message.split("`")[-2], "missing"
    return "line", message
