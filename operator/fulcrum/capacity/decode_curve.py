"""How long a decode step takes: a line in the context at each of a few batch sizes, straight between them.

One line for all batches, `a + b * batch + c * context`, misses what a mixture of experts does: a small batch touches
few experts, and a step grows with each that it touches besides. Where coefficients have no curve, that line is all
there is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from fulcrum.api.worker import DecodePoint, SpeedCoefficients

Line = tuple[float, float, float]
"""a, b, c: a step takes `a + b * batch + c * context` seconds, context summed over the batch."""


MOST_POINTS: Final = 128
"""Most points of a curve that comes from outside: the roofline has about ten, and every estimate walks along them."""
LONGEST_SECONDS: Final = 3600.0
"""Longest prefill or decode step that a coefficient from outside can say: larger numbers are faults, and sums of them
would overflow."""
LEAST_SECONDS: Final = 1e-6
"""Shortest step (s): times are divided by it."""


class Segments(NamedTuple):
    """A curve of at least two points, for those who ask for each request and each report of a worker."""

    batches: tuple[float, ...]
    lines: tuple[tuple[float, float, float, float, float, float], ...]
    """Between each two points: the batch where it begins, how many more it ends with, a, b, c there and its growth."""

    def line(self, batch: float) -> Line:
        """Return the line near `batch` requests."""
        start, span, a, b, c, growth = self.lines[bisect_right(self.batches, batch, 1, len(self.lines)) - 1]
        way = (batch - start) / span
        return a, b, c + (min(way, 1.0) if way > 0.0 else 0.0) * growth


@lru_cache(maxsize=1024)
def segments_of(curve: tuple[DecodePoint, ...]) -> Segments:
    """Return the segments of a curve of at least two points."""
    lines = []
    for low, high in pairwise(curve):
        span = high.batch - low.batch
        b = (high.seconds - low.seconds) / span
        growth = high.seconds_per_token - low.seconds_per_token
        lines.append((low.batch, span, low.seconds - b * low.batch, b, low.seconds_per_token, growth))
    return Segments(tuple(point.batch for point in curve), tuple(lines))


@lru_cache(maxsize=1024)
def _points(curve: tuple[DecodePoint, ...]) -> list[tuple[float, float, float]]:
    """Return batch, seconds without context, and seconds per token of context: of no request, and where it bends."""
    lines = [(batch, *segments_of(curve).line(batch)) for batch in (0.0, *(point.batch for point in curve))]
    return [(batch, a + b * batch, c) for batch, a, b, c in lines]


def decode_line(speed: SpeedCoefficients, batch: float) -> Line:
    """Return the line that gives the step of `batch` requests, and near it that of a few more or fewer."""
    if len(speed.decode_curve) < 2:
        return speed.decode_a, speed.decode_b, speed.decode_c
    return segments_of(speed.decode_curve).line(batch)


def decode_step_seconds(speed: SpeedCoefficients, batch: float, context_tokens: float) -> float:
    """Return the seconds of one step of `batch` requests whose contexts sum up to `context_tokens`."""
    a, b, c = decode_line(speed, batch)
    return a + b * batch + c * context_tokens


def decode_steps(speed: SpeedCoefficients, context_tokens: float, most: float) -> Iterator[tuple[float, float]]:
    """Yield batches from 0 to `most`, ascending, and their steps (s) with `context_tokens` each.

    It is straight between them. Steps never fall: what a measurement shows of that is noise.
    """
    step = 0.0
    curve = speed.decode_curve
    for batch, seconds, each in _points(curve) if len(curve) > 1 else ((0.0, speed.decode_a, 0.0),):
        if batch and batch >= most:
            break
        step = max(seconds + each * (batch * context_tokens), step)
        yield batch, step
    most = max(most, 0.0)
    yield most, max(decode_step_seconds(speed, most, most * context_tokens), step)


def decode_batch(speed: SpeedCoefficients, step_seconds: float, context_tokens: float, most: float) -> float:
    """Return the most requests, up to `most`, of `context_tokens` each whose step takes at most so long; may be < 1."""
    if not speed.decode_curve:  # asked for every candidate of every request
        spare, each = step_seconds - speed.decode_a, speed.decode_b + speed.decode_c * context_tokens
        return 0.0 if spare < 0 else most if spare >= most * each else spare / each
    batch = step = 0.0
    for more, longer in decode_steps(speed, context_tokens, most):
        if step_seconds < longer:
            return batch + (more - batch) * (step_seconds - step) / (longer - step) if more else 0.0
        batch, step = more, longer
    return batch


def scaled(speed: SpeedCoefficients, *, factor: float, offset_seconds: float = 0.0) -> SpeedCoefficients:
    """Return the speed with decode steps of `offset + factor * seconds`; prefill stays."""
    return msgspec.structs.replace(
        speed,
        decode_a=offset_seconds + factor * speed.decode_a,
        decode_b=factor * speed.decode_b,
        decode_c=factor * speed.decode_c,
        decode_curve=tuple(
            DecodePoint(
                batch=point.batch,
                seconds=offset_seconds + factor * point.seconds,
                seconds_per_token=factor * point.seconds_per_token,
            )
            for point in speed.decode_curve
        ),
    )


def fitted_curve(rows: Sequence[tuple[float, float, float]], line: Sequence[float]) -> tuple[DecodePoint, ...]:
    """Return the curve through measured steps: (batch, context tokens, seconds); empty with fewer than two batch sizes.

    Contexts of a batch that are all alike say nothing about their cost: `line` does, the a, b and c of all rows.
    """
    by_batch: dict[float, list[tuple[float, float]]] = {}
    for batch, context, seconds in rows:
        by_batch.setdefault(float(batch), []).append((context, seconds))
    if len(by_batch) < 2:
        return ()
    points: list[DecodePoint] = []
    for batch, steps in sorted(by_batch.items()):
        if len({context for context, _ in steps}) > 1:
            idle, each = _relative_line(steps)
        else:
            each = line[2]
            idle = fmean(seconds - each * context for context, seconds in steps)
        # A step never gets shorter with more requests, nor does it take no time.
        least = points[-1].seconds if points else LEAST_SECONDS
        points.append(DecodePoint(batch=batch, seconds=max(idle, least), seconds_per_token=each))
    return tuple(points)


def _relative_line(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return idle and slope >= 0 with the least squared relative error; `nonnegative` solves the same, and slower."""
    weights = [1 / seconds**2 for _, seconds in steps]
    rows = [(weight, context, seconds) for weight, (context, seconds) in zip(weights, steps, strict=True)]
    w = sum(weights)
    x, y = (sum(row[0] * row[place] for row in rows) for place in (1, 2))
    xx = sum(weight * context * context for weight, context, _ in rows)
    xy = sum(weight * context * seconds for weight, context, seconds in rows)
    slope = (w * xy - x * y) / (w * xx - x * x)
    if slope <= 0:
        return y / w, 0.0
    idle = (y - slope * x) / w
    return (idle, slope) if idle > 0 else (0.0, xy / xx)


def curve_problem(curve: Sequence[DecodePoint]) -> str | None:
    """Return what is wrong with a curve from outside; None: nothing."""
    if len(curve) == 1:
        return "has one point, and a line needs two"
    if len(curve) > MOST_POINTS:
        return f"has {len(curve)} points, and {MOST_POINTS} are the most"
    if any(not (0 < point.batch < inf and 0 < point.seconds <= LONGEST_SECONDS) for point in curve):
        return f"needs batches and seconds above 0, and seconds up to {LONGEST_SECONDS:g}"
    if any(not 0 <= point.seconds_per_token <= LONGEST_SECONDS for point in curve):
        return f"needs seconds per token of at least 0 and at most {LONGEST_SECONDS:g}"
    if any(one.batch >= other.batch for one, other in pairwise(curve)):
        return "needs ascending batches"
    return None
