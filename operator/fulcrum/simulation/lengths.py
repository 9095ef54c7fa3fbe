"""How long prompts and outputs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class Lengths(Protocol):
    """Draws prompt and output tokens, each at least 1."""

    def draw(self, count: int, random: np.random.Generator) -> tuple[Ints, Ints]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths:
    """Log-normal lengths with the given means; `spread` is the sigma of the logarithm, 0 makes all alike."""

    prompt_mean: float
    output_mean: float
    prompt_spread: float = 0.0
    output_spread: float = 0.0
    correlation: float = 0.0
    """Of the logarithms, -1 to 1."""

    def __post_init__(self) -> None:
        if not (self.prompt_mean >= 1 and self.output_mean >= 1):
            raise ValueError("prompt_mean and output_mean must be at least 1")
        if self.prompt_spread < 0 or self.output_spread < 0 or not -1 <= self.correlation <= 1:
            raise ValueError("spreads must not be negative, and the correlation between -1 and 1")

    def draw(self, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Return `count` prompt and output lengths."""
        one, two = random.standard_normal((2, count))
        other = self.correlation * one + np.sqrt(1 - self.correlation**2) * two
        prompts = np.exp(np.log(self.prompt_mean) - self.prompt_spread**2 / 2 + self.prompt_spread * one)
        outputs = np.exp(np.log(self.output_mean) - self.output_spread**2 / 2 + self.output_spread * other)
        return _tokens(prompts), _tokens(outputs)


def _tokens(lengths: NDArray[np.float64]) -> Ints:
    return np.maximum(1, np.round(lengths)).astype(np.int32)
