"""What a trace is: requests by arrival, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fulcrum.api.record import MOST_TOKENS

LONGEST_SECONDS: Final = 10 * 365.25 * 86_400
"""Longest time from a trace's first line to any other: ten years, far more than traces have. Within it, sums of times
are exact to 0.1 µs; beyond what doubles resolve a simulation would never end."""


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
    """A token count of a trace line: an integer from 1 to 2,147,483,647, which may be written `472.0`.

    Raises TraceError.
    """
    number = str(text)
    whole, _, fraction = number.partition(".")
    try:
        count = int(number if fraction.strip("0") else whole)
    except ValueError:
        raise TraceError(path, line, field, f"expected a whole number, got {text!r}") from None
    if count < 1:
        raise TraceError(path, line, field, f"expected at least 1, got {count}")
    if count > MOST_TOKENS:
        raise TraceError(path, line, field, f"expected at most {MOST_TOKENS}, got {text!r}")
    return count


class Span:
    """Checks that all lines of a trace are within `LONGEST_SECONDS` of the first one."""

    def __init__(self, path: Path, field: str) -> None:
        """`field`: the one with the time, for errors."""
        self._path = path
        self._field = field
        self._first_seconds: float | None = None

    def checked(self, line: int, seconds: float) -> float:
        """Return `seconds`, when the request of a line arrives. Raises TraceError."""
        if self._first_seconds is None:
            self._first_seconds = seconds
        away_seconds = abs(seconds - self._first_seconds)
        if away_seconds > LONGEST_SECONDS:
            problem = f"is {away_seconds:.3g} s from the first line; ten years ({LONGEST_SECONDS:.0f} s) are the most"
            raise TraceError(self._path, line, self._field, problem)
        return seconds
