"""At which rates work comes to a worker: over as long as an answer takes, so that one long prompt is no flood."""

from __future__ import annotations

import pytest
from tests.routing.cluster import ask, cluster, find, send


def busiest(output_tokens: float) -> float:
    """What prompts seem to take of a worker, right after one of 5 s that comes every 40 s to a mixed worker."""
    view = cluster(0, 0, 1)
    before = None
    for number in range(10):
        flight = send(view, ask(50_000.0, output_tokens), 40.0 * number)
        view.prefill_done(flight, 40.0 * number + 5)
        if before is not None:
            view.finish(before, 40.0 * number + 6)
        before = flight
    return view.workers.by_name["m0"].prompts.prefill_share(40.0 * number)


def test_a_long_prompt_counts_over_as_long_as_answers_take() -> None:
    """Steps take 11 ms, so that an answer of 10,000 tokens takes 110 s."""
    assert busiest(10_000) == pytest.approx(5 / 40, abs=0.04)
    assert busiest(100) > 0.4


def test_answers_of_prompts_that_are_behind_each_other_are_not_made_at_once() -> None:
    """A hundred prompts of a second each queue, whose answers take some tenths of a second: each is nearly alone."""
    view = cluster(1, 1)
    view.ttft_seconds = 200.0
    for _ in range(100):
        send(view, ask(10_000.0, 10.0), 0.0)
    assert find(view, ask(10_000.0, 10.0), 0.0).hand_over.step_seconds < 0.013
