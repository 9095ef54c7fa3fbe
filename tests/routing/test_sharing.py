"""Gateways tell each other what they sent where, and then know as much as one that sent all of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.routing import AffinityMemory, ClusterView, SentBatch, learn_batch, take_batch, token_ends
from fulcrum.routing.sent import MAX_BATCH_KEYS

ENDS = token_ends(512, 16)
WORKERS = ("a", "b", "c")


def gateway(names: tuple[str, ...] = WORKERS, *, others: bool = True) -> ClusterView:
    view = ClusterView(affinity=AffinityMemory(1000, ENDS))
    for name in names:
        view.workers.put(name, Role.MIXED, incarnation=f"{name}/0")
    view.affinity.share(others=others)
    return view


def send(view: ClusterView, keys: tuple[int, ...], worker: str) -> None:
    index = view.workers.by_name[worker].index
    new = 512 * len(keys) - view.affinity.held(keys, index)
    view.affinity.record(keys, index, new, new)


def tell(*gateways: ClusterView) -> None:
    for one in gateways:
        batch = take_batch(one)
        for other in gateways:
            if batch is not None and other is not one:
                learn_batch(other, over_the_wire(batch))


def over_the_wire(batch: SentBatch) -> SentBatch:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=SentBatch)


def holders(view: ClusterView, keys: tuple[int, ...]) -> tuple[int, list[str]]:
    units, found = view.affinity.match(keys)
    return units, [view.workers.by_index[index].name for index in found]


PROMPTS = st.tuples(st.sampled_from(range(3)), st.integers(1, 6)).map(
    lambda p: tuple(100 * p[0] + n for n in range(p[1]))
)
SENDS = st.lists(st.tuples(PROMPTS, st.sampled_from(WORKERS), st.integers(0, 2)), max_size=30)


@settings(max_examples=100, deadline=None)
@given(SENDS)
def test_three_gateways_know_what_one_would(sends: list[tuple[tuple[int, ...], str, int]]) -> None:
    """Their workers are numbered differently. Each request is told before the next one comes."""
    three = (gateway(), gateway(("c", "a", "b")), gateway(("b", "c", "a")))
    alone = gateway(others=False)
    for keys, worker, at in sends:
        send(three[at], keys, worker)
        send(alone, keys, worker)
        tell(*three)
    for start in range(3):
        chain = tuple(100 * start + number for number in range(6))
        for name in WORKERS:
            held = {view.affinity.held(chain, view.workers.by_name[name].index) for view in (*three, alone)}
            assert len(held) == 1
        assert len({holders(view, chain)[0] for view in (*three, alone)}) == 1


def test_a_prompt_is_told_once_and_nothing_is_told_on() -> None:
    one, other = gateway(), gateway()
    send(one, (1, 2, 3), "a")
    batch = take_batch(one)
    assert batch is not None
    assert (batch.workers, [each.keys for each in batch.sent]) == ({1: ("a", "a/0")}, [(1, 2, 3)])
    learn_batch(other, batch)
    assert take_batch(other) is None
    send(other, (1, 2, 3, 4), "a")
    batch = take_batch(other)
    assert batch is not None
    assert [(each.new_units, each.known, each.keys) for each in batch.sent] == [(512, True, (3, 4))]


def test_what_was_driven_out_and_sent_again_is_told_again() -> None:
    one, other = gateway(), gateway()
    for view in (one, other):
        view.affinity.join(view.workers.by_name["a"].index, 2000)
    send(one, (1,), "a")
    send(one, (10, 11, 12, 13), "a")
    tell(one, other)
    assert holders(other, (1,)) == (0, [])
    send(one, (1,), "a")
    tell(one, other)
    assert holders(other, (1,)) == (512, ["a"])


def test_a_gateway_that_comes_later_learns_of_prefixes_as_they_are_used_again() -> None:
    one = gateway()
    send(one, (1, 2), "a")
    take_batch(one)
    late = gateway()
    one.affinity.share(others=True)
    send(one, (1, 2, 3), "a")
    tell(one, late)
    assert holders(late, (1, 2, 3)) == (1536, ["a"])


def test_what_was_lost_is_told_once_more_when_it_is_sent_again() -> None:
    one, other = gateway(), gateway()
    send(one, (1, 2), "a")
    take_batch(one)
    send(one, (1, 2, 3), "a")
    tell(one, other)
    assert holders(other, (1, 2, 3)) == (0, []), "it does not know what these go on from"
    one.affinity.share(others=True)
    send(one, (1, 2, 3, 4), "a")
    tell(one, other)
    assert holders(other, (1, 2, 3, 4)) == (2048, ["a"])


def test_prompts_that_part_later_are_told_from_their_beginning() -> None:
    """The other gateway does not know that a prefix ends where the two prompts part."""
    one, other = gateway(), gateway()
    send(one, (1, 2, 3, 4), "a")
    tell(one, other)
    send(one, (1, 2, 5), "b")
    batch = take_batch(one)
    assert batch is not None
    assert [(each.known, each.keys) for each in batch.sent] == [(False, (1, 2, 5))]
    learn_batch(other, over_the_wire(batch))
    assert holders(other, (1, 2, 5)) == (1536, ["b"])
    assert holders(other, (1, 2, 3, 4)) == (2048, ["a"])


def test_another_process_and_a_worker_that_is_not_known_hold_nothing() -> None:
    one, other = gateway(), gateway(("a", "b"))
    other.workers.put("a", Role.MIXED, incarnation="a/1")
    for worker in WORKERS:
        send(one, (1, 2), worker)
    tell(one, other)
    assert holders(other, (1, 2)) == (1024, ["b"])
    one.workers.remove("b")
    send(one, (5,), "a")
    assert take_batch(one) is not None


def test_a_worker_that_left_before_it_was_told_is_left_out() -> None:
    one = gateway()
    send(one, (1, 2), "a")
    one.workers.remove("a")
    batch = take_batch(one)
    assert batch is not None
    assert batch.workers == {}
    other = gateway()
    learn_batch(other, batch)
    assert holders(other, (1, 2)) == (0, [])


def test_a_batch_is_bounded_and_alone_nothing_is_kept() -> None:
    one = gateway()
    for number in range(MAX_BATCH_KEYS // 4):
        send(one, tuple(1000 * number + block for block in range(16)), "a")
    batch = take_batch(one)
    assert batch is not None
    assert MAX_BATCH_KEYS - 17 <= sum(len(each.keys) + 1 for each in batch.sent) <= MAX_BATCH_KEYS + 1
    assert len(msgspec.msgpack.encode(batch)) < 256 * 1024
    send(one, (1, 2), "b")
    one.affinity.share(others=False)
    send(one, (3,), "b")
    assert take_batch(one) is None


GOOD = ({0: ("a", "a/0")}, ((0, 512, 512, False, (7, 2**64 - 1)),))


@pytest.mark.parametrize(
    "bad",
    [
        (GOOD[0], ((0, -1, 0, False, (7,)),)),
        (GOOD[0], ((0, 2**50, 0, False, (7,)),)),
        (GOOD[0], ((0, float("nan"), 0, False, (7,)),)),
        (GOOD[0], ((-1, 512, 512, False, (7,)),)),
        (GOOD[0], ((0, 512, 512, False, (-7,)),)),
        (GOOD[0], ((0, 512, 512, False, ("text",)),)),
        (GOOD[0], ((0, 512, 512, False, tuple(range(1000))),)),
        (GOOD[0], ((0, 512, 512, False, ()),)),
        (GOOD[0], ((0, 512, 512, 7, (7,)),)),
        (GOOD[0], ((0, 512, 512, (7,)),)),
        (dict.fromkeys(range(20_000), ("a", "a/0")), ()),
        ({-1: ("a", "a/0")}, ()),
        ({0: ("a" * 1000, "")}, ()),
        {"workers": 1},
        (),
    ],
)
def test_what_no_gateway_would_send_is_refused(bad: object) -> None:
    assert over_the_wire(msgspec.convert(GOOD, SentBatch)) == msgspec.convert(GOOD, SentBatch)
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=SentBatch)


def test_a_place_without_a_worker_is_left_out() -> None:
    view = gateway()
    learn_batch(view, msgspec.convert((GOOD[0], ((9, 512, 512, False, (7,)),)), SentBatch))
    assert holders(view, (7,)) == (0, [])
