"""How long prompts and outputs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fulcrum.simulation.workload import Workload

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

    @classmethod
    def fitted(cls, workload: Workload) -> LogNormalLengths:
        """Return the distribution with the means of a trace, and spreads and correlation of its logarithms."""
        prompts, outputs = np.log(workload.prompt_tokens), np.log(workload.output_tokens)
        spread = float(prompts.std()), float(outputs.std())
        correlated = len(workload) > 1 and min(spread) > 0
        return cls(
            prompt_mean=float(workload.prompt_tokens.mean()),
            output_mean=float(workload.output_tokens.mean()),
            prompt_spread=spread[0],
            output_spread=spread[1],
            correlation=float(np.clip(np.corrcoef(prompts, outputs)[0, 1], -1, 1)) if correlated else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLengths:
    """Pairs drawn from those of a trace, with replacement: its own distribution, whatever its shape."""

    workload: Workload

    def draw(self, count: int, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Return `count` prompt and output lengths."""
        chosen = random.integers(0, len(self.workload), count)
        return self.workload.prompt_tokens[chosen], self.workload.output_tokens[chosen]


def _tokens(lengths: NDArray[np.float64]) -> Ints:
    return np.maximum(1, np.round(lengths)).astype(np.int32)
