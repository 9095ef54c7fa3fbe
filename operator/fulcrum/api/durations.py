"""Durations as Kubernetes and Go write them: `500ms`, `30s`, `1m30s`, `24h`."""

from __future__ import annotations

import re
from typing import Final

from fulcrum.api.errors import InvalidValueError

PATTERN: Final = r"^([0-9]{1,6}(\.[0-9]{1,6})?(ms|s|m|h))+$"
"""Digits are bounded so that the sum of two terms still fits Go's 64-bit nanoseconds (see `MAX_LENGTH`)."""
MAX_LENGTH: Final = 16

_TERM: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS_PER_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FIX: Final = "write a number with ms, s, m or h, such as 500ms, 30s or 1m30s"


def seconds(text: str) -> float:
    """Seconds of a duration; raises InvalidValueError for anything that the API server would refuse, too."""
    if len(text) > MAX_LENGTH:
        raise InvalidValueError(value=text, problem=f"is longer than {MAX_LENGTH} characters", fix=_FIX)
    if re.fullmatch(PATTERN, text) is None or text.endswith("\n"):
        raise InvalidValueError(value=text, problem="is not a duration", fix=_FIX)
    return sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in _TERM.findall(text))


def text_of(duration_seconds: float) -> str:
    """A duration for people, to three digits: 0.0421 -> `42.1ms`, 1.5 -> `1.5s`. Read back by `seconds`."""
    if not 0 <= duration_seconds < 1e6:
        raise InvalidValueError(
            value=duration_seconds, problem="cannot be written as a duration", fix="give seconds from 0 to 999999"
        )
    # Rounded first: 0.9999 is 1s, and not 1e+03ms.
    milliseconds = float(f"{duration_seconds * 1000:.3g}")
    if milliseconds < 1000:
        return f"{milliseconds:.3f}".rstrip("0").rstrip(".") + "ms"
    return f"{milliseconds / 1000:.2f}".rstrip("0").rstrip(".") + "s"
