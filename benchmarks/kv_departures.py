"""Where an answer leaves what one engine without tiers would say, and whether rounding can explain it.

Other chunks of a prompt, and other requests in the batch, round otherwise, so a greedy step that is nearly a tie falls
either way. Lost or mixed-up KV makes other steps fall, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.answers import MIN_MARGIN
from tests.worker_image.agents import SERVED_NAME, post_json
from tests.worker_image.tiered_engine import TieredEngine

_LIKELIEST = 20
"""Tokens of a step whose probabilities are told: vLLM's most. More than two can be nearly a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A step at which an answer has another token than the engine would say."""

    step: int
    margin: float
    """By how much the engine's token leads the answer's, in nats; infinite: that is not among the 20 likeliest."""

    @property
    def is_tie(self) -> bool:
        """Whether rounding can explain it."""
        return self.margin < MIN_MARGIN

    def __str__(self) -> str:
        return f"token {self.step + 1}: {'nearly a tie' if self.is_tie else 'NOT a tie'}, margin {self.margin:.3f} nats"


def departures(alone: TieredEngine, prompt: Sequence[int], answer: Sequence[int]) -> list[Departure]:
    """Compare an answer with one engine, which is asked again behind each departure."""
    found: list[Departure] = []
    start = 0
    while start < len(answer):
        said = post_json(
            f"{alone.url}/v1/completions",
            {
                "model": SERVED_NAME, "prompt": [*prompt, *answer[:start]], "max_tokens": len(answer) - start,
                "temperature": 0, "ignore_eos": True, "logprobs": _LIKELIEST, "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
            seconds=300,
        )["choices"][0]  # fmt: skip
        pairs = zip(answer[start:], said["token_ids"], strict=True)
        step = next((step for step, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if step is None:
            break
        likeliest = said["logprobs"]["top_logprobs"][step]
        taken = likeliest.get(f"token_id:{answer[start + step]}", -inf)
        found.append(Departure(step=start + step, margin=max(likeliest.values()) - taken))
        start += step + 1
    return found


def finds_out(alone: TieredEngine, prompt: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the answer of another prompt does not pass for rounding: a check that cannot fail says nothing."""
    count = sum(not each.is_tie for each in departures(alone, prompt, other))
    print(f"control, the answer of another prompt: {count} of {len(other)} tokens are NOT a tie", flush=True)
    return count > 0
