"""The clusters that a request of one model is tried on, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fulcrum.front.conversation import Conversation, Conversations
from fulcrum.front.shares import Shares

_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503


class Choice:
    """Chooses for one model. Clusters are named by any text that is unique among them."""

    __slots__ = ("_conversations", "_fallback", "_shares")

    def __init__(self, weights: Mapping[str, int], fallback: Sequence[str] = ()) -> None:
        self._shares = Shares(weights)
        self._fallback = tuple(fallback)
        self._conversations = Conversations()

    def change(self, weights: Mapping[str, int], fallback: Sequence[str]) -> None:
        """The spec is this from now on. Conversations stay where they are, as long as their cluster is a backend."""
        self._shares.weigh(weights)
        self._fallback = tuple(fallback)

    def order(self, conversation: Conversation | None) -> tuple[str, ...]:
        """Clusters to try, the first one by share or conversation; counts the request for it.

        Empty: there is none. A conversation on a cluster of weight 0 ends there; no new one begins there. The cluster
        of a conversation stays the same while another one stands in for it.
        """
        first = self._first(conversation)
        if first is None:
            return self._fallback
        self._shares.count(first)
        if conversation is not None:
            self._conversations.remember(conversation, first)
        return (first, *(name for name in self._fallback if name != first))

    def _first(self, conversation: Conversation | None) -> str | None:
        if conversation is None:
            return self._shares.pick(None)
        known = self._conversations.find(conversation)
        if known is not None and known in self._shares:
            return known
        if conversation.continued is not None:  # another replica began it: all of them are led to the same cluster
            return self._shares.led_to(conversation.opening)
        return self._shares.pick(conversation.opening)


def turned_away(status: int) -> bool:
    """Whether an answer says that a cluster has not begun the request, so that another one may have it."""
    return status in (_TOO_MANY, _UNAVAILABLE)


def soonest(waits_seconds: Sequence[float | None]) -> int:
    """Of several clusters that turned a request away, the one to hear: it can serve soonest; else the first."""
    return min(range(len(waits_seconds)), key=lambda at: _wait(waits_seconds[at]))


def _wait(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
