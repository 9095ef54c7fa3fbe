"""How long a prompt is, where the engine did not say: from its bytes, by what answered requests have taught."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

PRIOR_BYTES_PER_TOKEN: Final = 4.0
"""English text in the vocabularies of today; what is learned outweighs it after a few requests."""
_PRIOR_TOKENS: Final = 64.0
_MEMORY_TOKENS: Final = 200_000.0
"""Older requests fade as this many tokens have come after them, so that a change of language is followed."""
_BRACKET: Final = ord("[")


class PromptEstimate:
    """Tokens of a prompt from its undecoded JSON; one for each route, because chat templates add tokens.

    A list of token ids is counted. The ratio of bytes to tokens of all others is learned online.
    """

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._tokens = _PRIOR_TOKENS
        self._bytes = _PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN

    def learn(self, prompt: Raw, tokens: int) -> None:
        """Take in one answered request; lists of token ids and counts that are not positive are ignored."""
        view = memoryview(prompt)
        if tokens <= 0 or not view.nbytes or _is_id_list(view):
            return
        keep = _MEMORY_TOKENS / (_MEMORY_TOKENS + tokens)
        self._bytes = self._bytes * keep + view.nbytes
        self._tokens = self._tokens * keep + tokens

    def tokens(self, prompt: Raw) -> int:
        """Return the expected tokens of a prompt, at least 1."""
        view = memoryview(prompt)
        if _is_id_list(view):
            return bytes(view).count(b",") + 1
        return max(1, round(view.nbytes * self._tokens / self._bytes))


def _is_id_list(prompt: memoryview) -> bool:
    """Whether it is a JSON list of token ids, or of such lists: `[1, 2]`, `[[1, 2], [3]]`."""
    if prompt.nbytes < 2 or prompt[0] != _BRACKET:  # a JSON string begins with its quote
        return False
    return bytes(prompt[:64]).lstrip(b"[ \t\r\n")[:1].isdigit()
