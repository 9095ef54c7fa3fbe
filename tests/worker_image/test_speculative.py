"""A real engine that decodes speculatively: several tokens in a step, and what the agent says of its speed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import pytest
from tests.machine import undisturbed, wait_until
from tests.worker_image.agents import Agent, prepared_model, start_agent, worker_config

from fulcrum.api.worker import WorkCounters
from fulcrum.capacity.online import OnlineSpeed
from fulcrum.capacity.rows import DecodeRow

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SPECULATIVE = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"prompt_lookup_max":3}'
PROMPT = "north, south, east, west"
ANSWER_TOKENS = 200
ONE_TOKEN = 300
"""All that answers may consist of: random weights repeat nothing, so that what n-grams propose would be refused."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    prepared_model()
    config = worker_config(engine_args=("--speculative-config", SPECULATIVE))
    agent = start_agent(tmp_path_factory.mktemp("speculative"), config)
    try:
        agent.wait_ready()
        yield agent
    finally:
        agent.kill()


def test_its_speed_is_known_when_it_is_ready(agent: Agent) -> None:
    assert agent.load().speed is not None, agent.tail()
    # A measurement that waited for one step a token would have gone on for `PATIENCE_SECONDS`.
    assert "measure_cut_short" not in agent.log.read_text()


def test_tokens_are_counted_and_the_time_of_one_is_learnt(agent: Agent) -> None:
    """The TPOT of an answer is within 15 % of what is predicted from the answers before it."""
    began = agent.load()
    assert began.speed is not None
    assert began.work is not None
    known = OnlineSpeed.start(began.speed)
    tokens, seconds = began.work.decode_tokens, began.work.decode_seconds

    def error() -> float:
        nonlocal known, tokens, seconds
        answer = agent.complete(PROMPT, max_tokens=ANSWER_TOKENS, ignore_eos=True, allowed_token_ids=[ONE_TOKEN])
        assert answer["usage"]["completion_tokens"] == ANSWER_TOKENS
        tokens += ANSWER_TOKENS - 1
        work = wait_until(partial(_booked, agent, tokens), seconds=30, what="all tokens are counted")
        row = DecodeRow(
            batch=1.0,
            context_tokens=answer["usage"]["prompt_tokens"] + ANSWER_TOKENS / 2,
            seconds_per_step=(work.decode_seconds - seconds) / (ANSWER_TOKENS - 1),
        )
        seconds = work.decode_seconds
        speed = known.coefficients
        predicted = speed.decode_a + speed.decode_b * row.batch + speed.decode_c * row.context_tokens
        known = known.updated([row])
        return abs(predicted / row.seconds_per_step - 1)

    learning = [error() for _ in range(3)]
    undisturbed(lambda: median(error() for _ in range(3)), at_most=0.15, what=f"at first {learning}")
    steps = agent.engine_metric("vllm:inter_token_latency_seconds_count")
    assert tokens > 1.5 * steps, "several tokens a step, or nothing was tested"


def _booked(agent: Agent, tokens: int) -> WorkCounters | None:
    """The counters once they hold that many tokens. More is a failure."""
    work = agent.load().work
    assert work is not None
    assert work.decode_tokens <= tokens
    return work if work.decode_tokens == tokens else None
