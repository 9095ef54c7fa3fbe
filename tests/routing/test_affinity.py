"""Memory of who has which prefix."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.routing import AffinityMemory, prefix_keys, token_ends
from fulcrum.routing.prefixes import BYTE_ENDS

ENDS = token_ends(512, 16)


def memory(capacity: int = 100, room: float = 1e6) -> AffinityMemory:
    made = AffinityMemory(capacity, ENDS)
    for worker in (1, 2, 3):
        made.join(worker, room)
    return made


def test_ends_rise_by_an_eighth_at_most() -> None:
    assert BYTE_ENDS[0] == 512
    assert all(a < b <= a + max(a // 8, 512) for a, b in pairwise(BYTE_ENDS))


@given(st.binary(max_size=6000), st.binary(max_size=3000), st.binary(max_size=3000), st.integers(0, 2**64 - 1))
def test_keys_agree_exactly_as_far_as_prompts_do(common: bytes, one: bytes, two: bytes, seed: int) -> None:
    a, b = prefix_keys(common + one, seed), prefix_keys(common + two, seed)
    for number, end in enumerate(BYTE_ENDS[: min(len(a), len(b))]):
        assert (a[number] == b[number]) == ((common + one)[:end] == (common + two)[:end])
    assert all(end <= len(common + one) for end in BYTE_ENDS[: len(a)])


def test_keys_are_secret_and_tell_what_stands_before_a_prompt() -> None:
    prompt = bytes(4096)
    kinds = [prefix_keys(prompt, 1), prefix_keys(prompt, 2), prefix_keys(prompt, 1, b"a"), prefix_keys(prompt, 1, b"b")]
    assert len({key for keys in kinds for key in keys}) == 4 * 8
    assert all(0 <= key < 2**64 for keys in kinds for key in keys)


def test_the_longest_prefix_that_somebody_has() -> None:
    known = memory()
    known.record((10, 11, 12), 1, 1536, 1536)
    known.record((10, 11), 2, 1024, 1024)
    assert known.match((10, 11, 12, 13)) == (1536, [1])
    assert known.match((10, 11, 99)) == (1024, [2, 1])
    assert known.match((98, 99)) == (0, [])
    assert known.held((10, 11, 12), 2) == 1024
    assert known.held((10, 11, 12), 3) == 0


def test_every_holder_of_a_shared_prefix_is_remembered() -> None:
    """Twenty workers share a system prompt, and each has a conversation of its own behind it."""
    known = AffinityMemory(1000, ENDS)
    for worker in range(20):
        known.join(worker, 1e6)
        known.record((10, 11, 100 + worker), worker, 1536, 1536)
    for worker in range(20):
        assert known.held((10, 11, 100 + worker), worker) == 1536
        assert known.held((10, 11), worker) == 1024
    units, found = known.match((10, 11))
    assert units == 1024
    assert found == list(range(19, 11, -1))


def test_workers_that_come_and_go_do_not_pile_up() -> None:
    known = AffinityMemory(1000, ENDS)
    for worker in range(500):
        known.join(worker, 1e6)
        known.record((10,), worker, 512, 512)
        if worker >= 3:
            known.leave(worker - 3)
    assert len(known._by_first[10].holders) <= 8
    assert known.match((10,)) == (512, [499, 498, 497])


def test_a_worker_that_left_holds_nothing() -> None:
    known = memory()
    known.record((10, 11), 1, 1024, 1024)
    known.leave(1)
    assert known.match((10, 11)) == (0, [])
    known.record((10,), 1, 512, 512)
    assert known.match((10,)) == (0, [])


def test_a_prefix_is_forgotten_when_its_worker_was_sent_more_than_it_keeps() -> None:
    known = memory(room=2000)
    known.record((10,), 1, 512, 512)
    known.record((20,), 1, 1500, 1500)
    assert known.match((10,)) == (512, [1])
    known.record((30,), 1, 200, 200)
    assert known.match((10,)) == (0, [])
    assert known.match((20,)) == (512, [1])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12), st.integers(1, 3)), max_size=80),
    st.integers(1, 20),
)
def test_memory_is_bounded_and_chains_have_no_holes(sent: list[tuple[int, int, int]], capacity: int) -> None:
    known = memory(capacity)
    for chain, length, worker in sent:
        keys = tuple(chain * 100 + number for number in range(length))
        known.record(keys, worker, 512.0, 512.0)
        assert len(known) <= capacity
        units, holders = known.match(keys)
        assert units == 512 * min(length, capacity)
        assert worker in holders
        there = [key for segment in known._by_use for key in segment.keys]
        assert len(there) == len(set(there)) == len(known)
        assert all(key % 100 == 0 or key - 1 in there for key in there)


def test_no_room_for_nothing() -> None:
    with pytest.raises(ValueError, match="capacity"):
        AffinityMemory(0)
