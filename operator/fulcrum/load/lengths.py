"""How long prompts and answers of the present load are, as soon as it can be known.

Prompts are known, nearly, when they come; answers only when they end, and by then the load may be another one. So what
came is taken by what was expected of it at its arrival, and these expectations are corrected by what ended: an error
that all of them have in common cancels out (a ratio estimate). How spread lengths are takes minutes to know: one very
long one counts for more than hundreds of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import sqrt

from fulcrum.load.tuning import TUNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Sums over lengths."""

    count: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Sums over requests that came, as estimated at their arrival."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    prompt_squares: float = 0.0
    """Of the same squared."""
    outputs: float = 0.0
    """Requests of which an output length was expected."""
    output_tokens: float = 0.0

    def before(self, newest: Arrived) -> Arrived:
        """Return what came before the `newest` of them."""
        sums = (each.name for each in fields(self))
        return Arrived(**{name: getattr(self, name) - getattr(newest, name) for name in sums})

    @property
    def prompts(self) -> Moments:
        """Their lengths."""
        return Moments(count=self.requests, tokens=self.prompt_tokens, squares=self.prompt_squares)

    @property
    def spread(self) -> float:
        """Squared coefficient of variation of the prompt lengths."""
        if self.prompt_tokens <= 0:
            return 0.0
        return max(self.requests * self.prompt_squares / self.prompt_tokens**2 - 1, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Sums over requests that ended: their lengths, and what was expected of them.

    Of answers it is what was expected when they ended: what was believed when they came may be long given up.
    """

    requests: float = 0.0
    tokens: float = 0.0
    expected: float = 0.0
    """Requests of which something was expected."""
    expected_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Mean lengths of a load; None: unknown."""

    isl_tokens: float | None
    isl_cv2: float | None
    """Squared coefficient of variation of the prompt lengths."""
    isl_seen: float
    """How many requests the mean is of."""
    osl_tokens: float | None
    osl_seen: float
    """How many requests the mean is worth."""
    osl_at_least: bool
    """None has ended yet: the mean is of answers under way, which are at least so long."""


def lengths(
    came: Arrived,
    *,
    prompts: Sequence[Measured],
    outputs: Sequence[Measured],
    stretches: Sequence[Arrived] = (),
) -> Lengths:
    """Return the lengths of what comes now, of which some `came` in the window.

    `prompts` and `outputs` of those that ended are those of the window, and those of the last minutes. `stretches` are
    what came in each `Tuning.window_seconds` of them.
    """
    isl = isl_cv2 = osl = None
    at_least = False
    osl_seen = outputs[0].requests
    if came.requests > 0 and came.prompt_tokens > 0:
        isl = came.prompt_tokens / came.requests * _correction(*prompts)
        common = common_spread([each.prompts for each in stretches])
        isl_cv2 = came.spread if common is None else common
    elif prompts[0].requests > 0:
        isl = prompts[0].tokens / prompts[0].requests
    if came.outputs > 0 and outputs[1].expected > 0:
        osl = came.output_tokens / came.outputs * _correction(*outputs)
        osl_seen = 1 / (1 / came.outputs + 1 / (outputs[0].requests + TUNING.steady_requests))
    elif outputs[0].requests > 0:
        osl = outputs[0].tokens / outputs[0].requests
    elif came.outputs > 0:
        osl, osl_seen, at_least = came.output_tokens / came.outputs, came.outputs, True
    return Lengths(
        isl_tokens=isl,
        isl_cv2=isl_cv2,
        isl_seen=came.requests or prompts[0].requests,
        osl_tokens=osl,
        osl_seen=osl_seen,
        osl_at_least=at_least,
    )


def begun(window: Arrived, newest: Sequence[Arrived]) -> int | None:
    """Return which of the `newest` parts of the window, the shortest first, holds all of its requests; None: no part.

    After a pause the load is what came since, in the time since, and not in all of the window.
    """
    for place, part in enumerate(newest):
        if part.requests >= max(TUNING.least_seen, window.requests):
            return place
    return None


def common_spread(stretches: Sequence[Moments]) -> float | None:
    """Return the squared coefficient of variation of lengths around the mean of their own stretch.

    Lengths that change from stretch to stretch are no spread. None where no two came in one.
    """
    squares = means = 0.0
    for came in stretches:
        if came.count >= 2 and came.tokens > 0:
            mean = came.tokens / came.count
            squares += came.squares - came.count * mean * mean
            means += (came.count - 1) * mean * mean
    return max(squares / means, 0.0) if means > 0 else None


def standard_error(cv2: float, seen: float) -> float:
    """Return the relative standard error of the mean of `seen` lengths.

    A few may be alike by chance: to what was seen of their spread, one of which nothing is known is added.
    """
    return sqrt((seen * cv2 + 1) / (seen + 1) / max(seen, 1e-9))


def _correction(ended: Measured, longer: Measured) -> float:
    """Return how many times longer lengths are than expected."""
    if longer.requests <= 0 or longer.expected_tokens <= 0:
        return 1.0
    made = TUNING.steady_requests * longer.tokens / longer.requests
    expected = TUNING.steady_requests * longer.expected_tokens / longer.expected
    if ended.expected > 0:
        made += ended.tokens
        expected += ended.requests * ended.expected_tokens / ended.expected
    return made / expected
