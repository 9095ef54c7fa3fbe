"""Which conversation a request belongs to, by digests of how it begins. No text is kept."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MOST_CONVERSATIONS: Final = 65_536
"""Conversations that a front remembers, about 16 MB; the one that was quiet for longest is forgotten first."""
_DIGEST_BYTES: Final = 12
_ASSISTANT: Final = re.compile(rb'"role"\s*:\s*"assistant"')
_ROLE: Final = re.compile(rb'"role"\s*:')
_BETWEEN: Final = b" \t\r\n{,]"
"""What stands between the end of a message and the role of the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Digests of a conversation's beginning."""

    opening: bytes
    """Of everything before the first answer."""
    continued: bytes | None = None
    """Of everything up to the message after the first answer; None: this is the first request."""
    named: bool = False
    """The client has named the conversation, so that equal digests are one conversation."""


def named_conversation(name: str, key: bytes) -> Conversation:
    """The conversation that a client names in a header."""
    return Conversation(opening=_digest(b"name " + name.encode("utf-8", "surrogatepass"), key), named=True)


def conversation_of(messages: bytes, key: bytes) -> Conversation:
    """The conversation of a list of messages, as the JSON that the client wrote. `key` is the same on all replicas.

    Two conversations may open with the same words, so from the second request on the first answer counts, too. Where a
    client writes the content of a message before its role, the second request is not recognised; later ones are.
    """
    answer = _ASSISTANT.search(messages) if b'"assistant"' in messages else None
    if answer is None:
        return Conversation(opening=_digest(messages.rstrip(_BETWEEN), key))
    opening = _digest(messages[: answer.start()].rstrip(_BETWEEN), key)
    after = _ROLE.search(messages, answer.end())
    begun = messages[: after.start()] if after is not None else messages
    return Conversation(opening=opening, continued=_digest(begun.rstrip(_BETWEEN), key))


class Conversations:
    """Which cluster serves which conversation."""

    __slots__ = ("_most", "_served")

    def __init__(self, most: int = MOST_CONVERSATIONS) -> None:
        self._most = most
        self._served: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._served)

    def find(self, conversation: Conversation) -> str | None:
        """The cluster of a conversation that has begun; None: it is new, or not known here."""
        if conversation.continued is not None:
            return self._served.get(conversation.continued) or self._served.get(conversation.opening)
        return self._served.get(conversation.opening) if conversation.named else None

    def remember(self, conversation: Conversation, cluster: str) -> None:
        """Its next requests go to `cluster`."""
        digest = conversation.continued or conversation.opening
        self._served[digest] = cluster
        self._served.move_to_end(digest)
        if len(self._served) > self._most:
            self._served.popitem(last=False)


def _digest(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).digest()
