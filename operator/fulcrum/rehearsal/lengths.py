"""How long answers are, some of which have not ended."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
MOST_TIMES: Final = 10.0
"""Of the longest that was seen; more would fill a play."""


class AnswerLengths:
    """The curve of Kaplan and Meier (1958). Beyond the longest answer that ended nothing is known but a scale.

    Answers of one load are of one kind, so all that goes on beyond it ends at one length, which is drawn once: it is
    more than x times the longest that was seen with probability 1/x (a log-uniform prior).
    """

    def __init__(self, lengths: Ints, ended: NDArray[np.bool_], chance: float) -> None:
        """`lengths` in tokens, of answers that ended, or are at least so long.

        `chance`, 0 to 1, draws the length of what goes on beyond: the smaller it is, the longer.
        """
        order = np.lexsort((~ended, lengths))  # of equal ones those that ended first: the others outlast them
        lengths, ended = lengths[order], ended[order]
        at_risk = len(lengths) - np.arange(len(lengths))
        surviving = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
        self._lengths = lengths[ended].astype(np.float64)
        self._surviving = surviving[ended]
        self._beyond = np.ceil(float(lengths.max(initial=1)) / max(chance, 1 / MOST_TIMES))

    def draw(self, at_least: Ints, random: np.random.Generator) -> Ints:
        """Return a length for each answer, longer than what is made of it already."""
        known = np.searchsorted(self._lengths, at_least, side="right")
        level = random.random(len(at_least)) * np.concatenate([[1.0], self._surviving])[known]
        # The first length at which the curve has fallen to the level that was drawn.
        place = np.searchsorted(-self._surviving, -level, side="left")
        within = np.append(self._lengths, 0.0)[np.minimum(place, len(self._lengths))]
        drawn = np.where(place >= len(self._lengths), self._beyond, within)
        result: Ints = np.maximum(drawn, np.maximum(at_least + 1, 1)).astype(np.int64)
        return result
