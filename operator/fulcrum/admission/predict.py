"""What is estimated of a request before it is served, and how far predictions can be trusted.

The latencies themselves come from `routing`, which chooses by them: on each candidate TTFT = queue ahead + own uncached
prefill + transfer + first decode step, and TPOT from the decode batch as it will be at hand-over (`routing.latency`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Final

from fulcrum.admission.quantile import OnlineQuantile

_PRIOR_BYTES_PER_TOKEN: Final = 4.0
_PRIOR_TOKENS: Final = 64.0
_RATIO_MEMORY_TOKENS: Final = 200_000.0
_USUAL_OUTPUT_TOKENS: Final = 256.0
_LONGEST_OUTPUT_TOKENS: Final = 1e6
# The mean of an exponential is its quantile at 1 - 1/e; what follows needs means, and a quantile bears outliers.
_OUTPUT_LEVEL: Final = 1 - exp(-1)
_BUCKETS: Final = 25
_ENOUGH_SAMPLES: Final = 10
_ENOUGH_ANSWERS: Final = 3.0
"""From so many on the mean of a length is taken."""
_MOST_ANSWERS: Final = 64.0
"""Beyond so many the older ones are forgotten."""

SMALL_SHARE: Final = 0.1
"""Latencies are compared after adding this share of the promise, so that a millisecond's error on one of a millisecond
does not count as a factor of two."""
_LOWEST_MARGIN: Final = 1.0
"""What came out better than predicted is no room: speeds are learned elsewhere."""
_HIGHEST_MARGIN: Final = 3.0
_FIRST_MARGIN: Final = 1.1
_MARGIN_RATE: Final = 0.03
_NEAR: Final = 0.8
"""Share of the limit above which a case is near it."""
_SILENT_REJECTIONS: Final = 50
_RELAX: Final = 0.01


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
    """Expected output tokens, by class and prompt length (powers of two)."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self._by_bucket = [[self._new() for _ in range(_BUCKETS)] for _ in class_names]
        self._by_class = [self._new() for _ in class_names]

    def expect(self, qos: int, prompt_tokens: float, max_tokens: float | None) -> float:
        """Output tokens of a request, at most `max_tokens`, at least 1."""
        known = self._by_bucket[qos][_bucket(prompt_tokens)]
        if known.samples < _ENOUGH_SAMPLES:
            known = self._by_class[qos]
        expected = known.value
        return expected if max_tokens is None or expected < max_tokens else max(max_tokens, 1.0)

    def learn(self, qos: int, prompt_tokens: float, output_tokens: float) -> None:
        """A request made `output_tokens`."""
        self._by_bucket[qos][_bucket(prompt_tokens)].add(output_tokens)
        self._by_class[qos].add(output_tokens)

    @staticmethod
    def _new() -> OnlineQuantile:
        return OnlineQuantile(_OUTPUT_LEVEL, _USUAL_OUTPUT_TOKENS, low=1.0, high=_LONGEST_OUTPUT_TOKENS)


class MeanOutputs:
    """Mean output tokens by class and prompt length (powers of two), of the last answers: what the load is told by.

    Unlike `OutputLengths` it follows another load within a few answers, and a few outliers with it.
    """

    __slots__ = ("_answers", "_tokens")

    def __init__(self, classes: int) -> None:
        self._answers = [[0.0] * _BUCKETS for _ in range(classes)]
        self._tokens = [[0.0] * _BUCKETS for _ in range(classes)]

    def expect(self, qos: int, prompt_tokens: float) -> float:
        """Return the mean of the nearest length that enough came of; 0 without any."""
        answers = self._answers[qos]
        own = _bucket(prompt_tokens)
        for away in range(_BUCKETS):
            for place in (own - away, own + away):
                if 0 <= place < _BUCKETS and answers[place] >= _ENOUGH_ANSWERS:
                    return self._tokens[qos][place] / answers[place]
        return 0.0

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


class Margin:
    """How much longer than predicted a latency has to be expected to be: a quantile of actual over predicted.

    With a level of 0.95, at least 95 % of those that were let in at the very limit keep their promise.
    """

    __slots__ = ("_quantile", "_silence", "error", "samples")

    def __init__(self, level: float) -> None:
        level = min(max(level, 0.5), 0.999)
        self._quantile = OnlineQuantile(
            level, _FIRST_MARGIN, low=_LOWEST_MARGIN, high=_HIGHEST_MARGIN, rate=_MARGIN_RATE, first_rate=_MARGIN_RATE
        )
        self._silence = 0
        self.samples = 0
        self.error = 0.0
        """Mean of |actual - predicted| / actual over the last requests (of at least a tenth of the promise)."""

    @property
    def factor(self) -> float:
        """Actual over predicted latency, at the level."""
        return self._quantile.value

    def allowed_seconds(self, promise_seconds: float) -> float:
        """The longest prediction with which a promise is still expected to be kept."""
        small = SMALL_SHARE * promise_seconds
        return (promise_seconds + small) / self._quantile.value - small

    def learn(
        self,
        predicted_seconds: float,
        actual_seconds: float,
        promise_seconds: float,
        *,
        limiting_seconds: float | None = None,
    ) -> None:
        """A latency that was predicted has come out.

        `limiting_seconds`: what it was let in by, where that was another figure than the prediction, and depends on who
        is let in later: then only cases near the limit, and broken promises, tell how wrong it was.
        """
        if not (predicted_seconds >= 0 and actual_seconds > 0):
            return
        self._silence = 0
        self.samples += 1
        weight = max(0.02, 1 / self.samples)
        scale = max(actual_seconds, SMALL_SHARE * promise_seconds)
        self.error += weight * (abs(actual_seconds - predicted_seconds) / scale - self.error)
        if limiting_seconds is not None:
            near = limiting_seconds > _NEAR * self.allowed_seconds(promise_seconds)
            if not near and actual_seconds <= promise_seconds:
                return
            predicted_seconds = limiting_seconds
        small = SMALL_SHARE * promise_seconds
        self._quantile.add((actual_seconds + small) / (predicted_seconds + small))

    def rejected(self) -> None:
        """A request was turned away for this latency. A margin that lets nobody in would never learn better."""
        self._silence += 1
        if self._silence > _SILENT_REJECTIONS and self._quantile.value > 1:
            self._quantile.lower(_RELAX)
