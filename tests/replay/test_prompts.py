"""Prompts: as long as asked, equal where the trace says so, different everywhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fulcrum.replay import PromptWriter
from fulcrum.simulation.traffic import Request


def request(prompt_tokens: int, *hash_ids: int) -> Request:
    return Request(arrival_seconds=0, prompt_tokens=prompt_tokens, output_tokens=1, prefix_hash_ids=hash_ids)


@given(prompt_tokens=st.integers(1, 3000), tokens_per_word=st.floats(0.5, 4), hash_ids=st.lists(st.integers(0, 9)))
def test_length(prompt_tokens: int, tokens_per_word: float, hash_ids: list[int]) -> None:
    writer = PromptWriter(tokens_per_word=tokens_per_word, seed=1)
    words = writer.write(0, request(prompt_tokens, *hash_ids)).split(" ")
    assert len(words) == max(1, round(prompt_tokens / tokens_per_word))


def test_equal_hashes_give_an_equal_prefix_and_no_more() -> None:
    writer = PromptWriter(tokens_per_word=1, seed=1)
    one = writer.write(0, request(1500, 4, 5)).split(" ")
    other = writer.write(1, request(1500, 4, 6)).split(" ")
    assert one[:512] == other[:512]
    assert one[512:1024] != other[512:1024]
    assert one[1024:] != other[1024:]


def test_text_depends_on_seed_and_index_only() -> None:
    first = PromptWriter(tokens_per_word=1, seed=1)
    assert first.write(3, request(50)) == PromptWriter(tokens_per_word=1, seed=1).write(3, request(50))
    assert first.write(3, request(50)) != first.write(4, request(50))
    assert first.write(3, request(50)) != PromptWriter(tokens_per_word=1, seed=2).write(3, request(50))
