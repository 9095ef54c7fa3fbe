"""What is estimated of a request before it is served: the tokens of its prompt and of its answer."""

from __future__ import annotations

from typing import Final

from fulcrum.api.pool_types import MAX_PROMPT_TOKENS

_PRIOR_BYTES_PER_TOKEN: Final = 4.0
_PRIOR_TOKENS: Final = 64.0
_RATIO_MEMORY_TOKENS: Final = 200_000.0
_USUAL_OUTPUT_TOKENS: Final = 256.0
"""Expected of an answer before any has ended."""
_BUCKETS: Final = MAX_PROMPT_TOKENS.bit_length()
"""Prompt lengths by powers of two."""
_ENOUGH_ANSWERS: Final = 3.0
"""From so many on the mean of a length is taken."""
_MOST_ANSWERS: Final = 64.0
"""Beyond so many the older ones are forgotten."""


class TokenRatio:
    """Bytes of prompt per token, learned from the usage that engines report; recent prompts count most."""

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._bytes = _PRIOR_TOKENS * _PRIOR_BYTES_PER_TOKEN
        self._tokens = _PRIOR_TOKENS

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
        self._bytes += prompt_bytes
        self._tokens += prompt_tokens
        if self._tokens > _RATIO_MEMORY_TOKENS:
            self._bytes *= _RATIO_MEMORY_TOKENS / self._tokens
            self._tokens = _RATIO_MEMORY_TOKENS


class OutputLengths:
    """Mean output tokens of the last answers, by class and prompt length (powers of two)."""

    __slots__ = ("_answers", "_tokens")

    def __init__(self, classes: int) -> None:
        self._answers = [[0.0] * _BUCKETS for _ in range(classes)]
        self._tokens = [[0.0] * _BUCKETS for _ in range(classes)]

    def mean(self, qos: int, prompt_tokens: float) -> float:
        """Return the mean of the nearest length that enough came of; 0 without any."""
        answers = self._answers[qos]
        own = _bucket(prompt_tokens)
        for away in range(_BUCKETS):
            for place in (own - away, own + away):
                if 0 <= place < _BUCKETS and answers[place] >= _ENOUGH_ANSWERS:
                    return self._tokens[qos][place] / answers[place]
        return 0.0

    def expect(self, qos: int, prompt_tokens: float, max_tokens: float | None) -> float:
        """Output tokens of a request, at most `max_tokens`, at least 1."""
        expected = max(self.mean(qos, prompt_tokens) or _USUAL_OUTPUT_TOKENS, 1.0)
        return expected if max_tokens is None or expected < max_tokens else max(max_tokens, 1.0)

    def learn(self, qos: int, prompt_tokens: float, output_tokens: float) -> None:
        """A request made `output_tokens`."""
        place = _bucket(prompt_tokens)
        answers, tokens = self._answers[qos], self._tokens[qos]
        if answers[place] >= _MOST_ANSWERS:
            answers[place] /= 2
            tokens[place] /= 2
        answers[place] += 1
        tokens[place] += output_tokens


def _bucket(prompt_tokens: float) -> int:
    return min(int(prompt_tokens).bit_length(), _BUCKETS - 1)
