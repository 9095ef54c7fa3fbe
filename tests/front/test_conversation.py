"""Conversations are recognised by how they begin, and nothing of their text is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fulcrum.front.conversation import Conversation, Conversations, conversation_of, named_conversation

KEY = b"front"


def turns(count: int, *, opening: str = "Hello", answer: str = "Hi", **dump: Any) -> bytes:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": opening}]
    for number in range(count - 1):
        messages += [
            {"role": "assistant", "content": f"{answer} {number}"},
            {"role": "user", "content": f"And {number}?"},
        ]
    return json.dumps(messages, **dump).encode()


def after(requests: list[bytes], cluster: str = "a") -> Conversations:
    known = Conversations()
    for request in requests:
        known.remember(conversation_of(request, KEY), cluster)
    return known


@pytest.mark.parametrize("dump", [{}, {"separators": (",", ":")}, {"indent": 1}], ids=["blanks", "compact", "indented"])
def test_every_next_request_is_recognised(dump: dict[str, Any]) -> None:
    for count in range(2, 6):
        known = after([turns(each, **dump) for each in range(1, count)])
        assert known.find(conversation_of(turns(count, **dump), KEY)) == "a"


def test_a_first_request_is_a_new_conversation_also_when_it_opens_like_another() -> None:
    assert after([turns(1)]).find(conversation_of(turns(1), KEY)) is None


def test_conversations_that_open_alike_are_told_apart_by_their_first_answer() -> None:
    known = after([turns(1), turns(2)])
    known.remember(conversation_of(turns(1), KEY), "b")
    known.remember(conversation_of(turns(2, answer="Hey"), KEY), "b")
    assert known.find(conversation_of(turns(3), KEY)) == "a"
    assert known.find(conversation_of(turns(3, answer="Hey"), KEY)) == "b"


def test_a_role_within_a_text_is_no_message() -> None:
    said = 'see {"role": "assistant"}'
    assert conversation_of(turns(1, opening=said), KEY).continued is None


def test_content_before_role_is_recognised_from_the_third_request_on() -> None:
    def swapped(count: int) -> bytes:
        return json.dumps([dict(reversed(each.items())) for each in json.loads(turns(count))]).encode()

    known = after([swapped(2)])
    assert known.find(conversation_of(swapped(3), KEY)) == "a"


def test_a_named_conversation_is_one_from_its_second_request_on() -> None:
    known = Conversations()
    assert known.find(named_conversation("session-1", KEY)) is None
    known.remember(named_conversation("session-1", KEY), "b")
    assert known.find(named_conversation("session-1", KEY)) == "b"
    assert known.find(named_conversation("session-2", KEY)) is None


def test_the_quietest_is_forgotten_and_no_text_is_kept() -> None:
    known = Conversations(2)
    for name in ("one", "two", "one", "three"):
        known.remember(named_conversation(name, KEY), "a")
    assert len(known) == 2
    assert known.find(named_conversation("two", KEY)) is None
    assert b"Hello" not in conversation_of(turns(1), KEY).opening
    assert conversation_of(turns(1), b"other front") != conversation_of(turns(1), KEY)
    assert isinstance(conversation_of(b"[]", KEY), Conversation)
