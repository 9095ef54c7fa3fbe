"""Questions with known greedy answers, asked of one engine directly."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from local_cluster import Cluster, Worker
from tests.machine import deadline_seconds
from this_machine import FP8

OUTPUT_TOKENS = 48
"""So many that some answers are always under way, though a step of the tiny model takes milliseconds: what kills,
drains and flips must not lose."""
FP8_MARGIN = 0.4
BF16_MARGIN = 0.3
FLOAT32_MARGIN = 0.02
"""Between the two likeliest tokens, in nats. Rounding depends on what else is in an engine's batch, so that a greedy
step that is nearly a tie may fall either way; such questions say nothing about lost or mixed-up KV cache. Float32
rounds thousands of times less than an FP8 KV cache. Bf16 has eighths only of logits between 16 and 32, and either of
two may be one off: which, the CPU's matrix kernels say."""
MIN_MARGIN = FP8_MARGIN if FP8 else FLOAT32_MARGIN
"""With the real model, which this CPU serves with an FP8 KV cache where it can."""
WANTED = 12

_TOPICS = (
    "capital of France", "capital of Italy", "capital of Japan", "capital of Spain", "capital of Germany",
    "color of the sky", "number after seven", "opposite of hot", "largest ocean", "first month of the year",
)  # fmt: skip
_FORMS = (
    "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, {n},",
    "Repeat after me: {t}, {t}, {t}, {t}, {t}, {t}, {t}, {t},",
    "Line {n}: the {t}.\nLine {n}: the {t}.\nLine {n}: the {t}.\nLine {n}: the {t}.\nLine",
    "a b c d e f g {n} h i j k l m n o p q r s t u v w x y z " * 4,
)


def min_margin(cluster: Cluster) -> float:
    """By how much each greedy step has to win in this cluster."""
    dtype = cluster.cluster()["spec"]["engine"]["kvCache"]["dtype"]
    return {"fp8": FP8_MARGIN, "bf16": BF16_MARGIN}.get(dtype, FLOAT32_MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A completion request and the only right answer to it."""

    body: dict[str, Any]
    answer: str


def questions_of(cluster: Cluster, *, of: Worker | None = None) -> list[Question]:
    """The first questions whose every greedy step wins by `min_margin`, with the engine's answers."""
    found: list[Question] = []
    least = min_margin(cluster)
    for number, topic in enumerate(_TOPICS):
        for form in _FORMS:
            body = {
                "model": cluster.name,
                "prompt": form.format(n=20 + number, t=topic),
                "max_tokens": OUTPUT_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            choice = cluster.ask_engine("/v1/completions", {**body, "logprobs": 2}, of=of)["choices"][0]
            if min(margin(top.values()) for top in choice["logprobs"]["top_logprobs"]) >= least:
                found.append(Question(body=body, answer=choice["text"]))
            if len(found) == WANTED:
                return found
    raise AssertionError(f"only {len(found)} questions of {WANTED} have an answer that rounding cannot change")


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
        return json.load(response)


def margin(logprobs: Iterable[float]) -> float:
    """By how much the likeliest token of a step leads, in nats."""
    likeliest, *others = sorted(logprobs, reverse=True)
    return likeliest - others[0] if others else math.inf
