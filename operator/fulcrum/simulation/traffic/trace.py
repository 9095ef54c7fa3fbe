"""What a trace is: requests by arrival, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace, as lengths only: traces carry no text."""

    arrival_seconds: float
    """Since the first request of the trace."""
    prompt_tokens: int
    output_tokens: int
    prefix_hash_ids: tuple[int, ...] = ()
    """One id per block of `PREFIX_BLOCK_TOKENS` prompt tokens; equal leading ids mean an equal leading prompt."""
    qos_class: str | None = None


class TraceError(ValueError):
    """A trace that cannot be read; says which file, line and field, and what was expected there."""

    def __init__(self, path: Path, line: int, field: str, problem: str) -> None:
        super().__init__(f"{path}:{line}: {field}: {problem}")
        self.path = path
        self.line = line
        self.field = field
        self.problem = problem


def positive_int(path: Path, line: int, field: str, text: object) -> int:
    """A token count of a trace line: an integer of at least 1, which may be written `472.0`. Raises TraceError."""
    number = str(text)
    whole, _, fraction = number.partition(".")
    try:
        count = int(number if fraction.strip("0") else whole)
    except ValueError:
        raise TraceError(path, line, field, f"expected a whole number, got {text!r}") from None
    if count < 1:
        raise TraceError(path, line, field, f"expected at least 1, got {count}")
    return count
