"""Prefill on one engine and decode on another give the tokens that one engine gives, whatever the prompt's length."""

from __future__ import annotations

import pytest
from local_cluster import Cluster
from parity import PROMPT_WORDS, assert_chat_parity, assert_completion_parity

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("words", PROMPT_WORDS)
def test_completions(whole: Cluster, words: int, stream: bool) -> None:
    assert_completion_parity(whole, words, stream=stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chat(whole: Cluster, stream: bool) -> None:
    assert_chat_parity(whole, stream=stream)
