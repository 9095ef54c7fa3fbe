"""What is estimated of a request before it is served: the tokens of its prompt and of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fulcrum.admission.tuning import TUNING
from fulcrum.api.admission_state import MeanOutput
from fulcrum.api.pool_types import MAX_PROMPT_TOKENS
from fulcrum.routing import Flight
from fulcrum.routing.tuning import TUNING as ROUTING

_BUCKETS: Final = MAX_PROMPT_TOKENS.bit_length()
"""Prompt lengths by powers of two."""


class TokenRatio:
    """Bytes of prompt per token, learned from the usage that engines report; recent prompts count most."""

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._bytes, self._tokens = ROUTING.bytes_per_token, 1.0

    @property
    def bytes_per_token(self) -> float:
        """The present estimate."""
        return self._bytes / self._tokens

    def tokens(self, prompt_bytes: float) -> float:
        """Tokens of a prompt of `prompt_bytes`; at least 1."""
        return max(prompt_bytes * self._tokens / self._bytes, 1.0)

    def learn(self, prompt_bytes: float, prompt_tokens: float) -> None:
        """A prompt of `prompt_bytes` had `prompt_tokens`."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        faded = 1 - 1 / ROUTING.recent_requests
        self._bytes = faded * self._bytes + prompt_bytes
        self._tokens = faded * self._tokens + prompt_tokens


class OutputLengths:
    """Mean output tokens of the last answers, by class and prompt length (powers of two).

    Where none has ended yet it is that of the longest answer under way.
    """

    __slots__ = ("_lengths", "_longest", "_looked_at")

    def __init__(self, classes: int) -> None:
        self._lengths = [[_Lengths() for _ in range(_BUCKETS)] for _ in range(classes)]
        self._longest = [0.0] * classes
        self._looked_at = 0.0

    def mean(self, qos: int, prompt_tokens: float) -> float:
        """Return the mean of the nearest length that more than two came of.

        Before any has ended it is that of the longest answer under way, and 0 where that is shorter than usual ones.
        """
        lengths = self._lengths[qos]
        own = _bucket(prompt_tokens)
        for away in range(_BUCKETS):
            for place in (own - away, own + away):
                if 0 <= place < _BUCKETS and lengths[place].known:
                    return lengths[place].mean_tokens
        longest = self._longest[qos]
        return longest if longest > TUNING.usual_output_tokens else 0.0

    def expect(self, qos: int, prompt_tokens: float, max_tokens: float | None) -> float:
        """Output tokens of a request, at most `max_tokens`, at least 1."""
        expected = max(self.mean(qos, prompt_tokens) or TUNING.usual_output_tokens, 1.0)
        return expected if max_tokens is None or expected < max_tokens else max(max_tokens, 1.0)

    def learn(self, qos: int, prompt_tokens: float, output_tokens: float) -> None:
        """A request made `output_tokens`."""
        self._lengths[qos][_bucket(prompt_tokens)].learn(output_tokens)

    def state(self) -> tuple[MeanOutput, ...]:
        """Return what a copy begins from."""
        return tuple(
            [
                MeanOutput(qos, place, each.ended, each.mean_tokens)
                for qos, of_class in enumerate(self._lengths)
                for place, each in enumerate(of_class)
                if each.ended
            ]
        )

    def begin_with(self, state: Sequence[MeanOutput]) -> None:
        """Go on from what another one of as many classes has learnt."""
        self._lengths = [[_Lengths() for _ in of_class] for of_class in self._lengths]
        for each in state:
            if each.qos < len(self._lengths) and each.doubling < _BUCKETS:
                lengths = self._lengths[each.qos][each.doubling]
                lengths.ended, lengths.mean_tokens = each.ended, each.tokens

    def look(self, under_way: Iterable[Flight], now_seconds: float) -> None:
        """Take note of the longest answer `under_way` in each class of which too few have ended, once a second."""
        if now_seconds < self._looked_at + 1.0:
            return
        self._looked_at = now_seconds
        unknown = [not any(each.known for each in of_class) for of_class in self._lengths]
        if not any(unknown):
            return
        self._longest = [0.0] * len(unknown)
        for flight in under_way:
            if unknown[flight.load.qos]:
                qos = flight.load.qos
                self._longest[qos] = max(self._longest[qos], flight.made_tokens(now_seconds))


class _Lengths:
    """Of one class and prompt length."""

    __slots__ = ("ended", "mean_tokens")

    def __init__(self) -> None:
        self.ended, self.mean_tokens = 0, 0.0

    @property
    def known(self) -> bool:
        return self.ended > 2

    def learn(self, tokens: float) -> None:
        self.ended += 1
        self.mean_tokens += (tokens - self.mean_tokens) / min(self.ended, ROUTING.recent_requests)


def _bucket(prompt_tokens: float) -> int:
    return min(int(prompt_tokens).bit_length(), _BUCKETS - 1)
