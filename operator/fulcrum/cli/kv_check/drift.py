"""How far the answers of two engines are apart: pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine says to one prompt."""

    prompt: tuple[int, ...]
    """Token ids."""
    tokens: tuple[int, ...]
    """Token ids of its greedy answer."""
    decoded: tuple[float, ...]
    """Log-probability of each of these tokens as it was decoded, in nats."""
    likeliest: tuple[dict[int, float], ...]
    """At each of these steps the log-probabilities of the likeliest tokens."""
    forced: tuple[float, ...]
    """Log-probability of each token of the reference's answer, given the prompt and that answer's tokens before it."""

    @property
    def is_whole(self) -> bool:
        """Whether a reference has everything to each of its tokens."""
        sizes = {len(each) for each in (self.tokens, self.decoded, self.likeliest, self.forced)}
        return len(sizes) == 1 and bool(self.prompt) and bool(self.tokens)


class Drift(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a candidate departs from the reference. Means and maxima are of |change of log-probability|, in nats."""

    prompts: int
    answer_tokens: int
    """Of the reference."""
    equal_tokens: int
    """Of these, before the first difference in each answer: beyond it the engines continue different texts."""
    first_difference: int | None
    """Least number of equal tokens before a difference; None: all answers are equal."""
    decoded_tokens: int
    decoded_mean: float
    """Over tokens that both decoded after the same text: those before the first difference, and the one there."""
    decoded_max: float
    forced_mean: float
    """Over all tokens of the reference's answers, which both engines read as part of a prompt."""
    forced_max: float

    @property
    def nats(self) -> float:
        """The larger mean: some attention backends read new keys and values not from the cache in a prompt."""
        return max(self.decoded_mean, self.forced_mean)


def drift_between(reference: Sequence[Answer], candidate: Sequence[Answer]) -> Drift:
    """Compare the answers to the same prompts, in the same order; there is at least one token."""
    decoded: list[float] = []
    forced: list[float] = []
    firsts: list[int] = []
    equal_tokens = 0
    for one, other in zip(reference, candidate, strict=True):
        equal = _equal_tokens(one, other)
        equal_tokens += min(equal, len(one.tokens))
        if one.tokens != other.tokens:
            firsts.append(equal)
        decoded += _decoded_distances(one, other, equal)
        forced += (abs(a - b) for a, b in zip(one.forced, other.forced, strict=True))
    return Drift(
        prompts=len(reference),
        answer_tokens=len(forced),
        equal_tokens=equal_tokens,
        first_difference=min(firsts, default=None),
        decoded_tokens=len(decoded),
        decoded_mean=_mean(decoded),
        decoded_max=max(decoded, default=0.0),
        forced_mean=_mean(forced),
        forced_max=max(forced, default=0.0),
    )


def _equal_tokens(one: Answer, other: Answer) -> int:
    pairs = enumerate(zip_longest(one.tokens, other.tokens))
    return next((step for step, (a, b) in pairs if a != b), len(one.tokens))


def _decoded_distances(one: Answer, other: Answer, equal: int) -> list[float]:
    distances = [abs(a - b) for a, b in zip(one.decoded[:equal], other.decoded[:equal], strict=True)]
    if equal < min(len(one.tokens), len(other.tokens)):
        # A token that is not among the candidate's likeliest is at most as likely as the last of them.
        there = other.likeliest[equal]
        distances.append(abs(one.decoded[equal] - there.get(one.tokens[equal], min(there.values()))))
    return distances


def _mean(distances: Sequence[float]) -> float:
    return sum(distances) / len(distances) if distances else 0.0
