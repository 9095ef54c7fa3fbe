"""How long a prompt is, where the engine did not say: from its bytes, by what answered requests have taught."""

from __future__ import annotations

from typing import Final

from fulcrum.admission import TokenRatio

_OPENING: Final = b"["


class PromptEstimate:
    """Tokens of a prompt from its undecoded JSON; one for each route, because chat templates add tokens.

    A list of token ids is counted. The ratio of bytes to tokens of all others is learned online. `beside_bytes` is what
    the prompt is made of besides: tools are written into it by the chat template.
    """

    __slots__ = ("_ratio",)

    def __init__(self) -> None:
        self._ratio = TokenRatio()

    def learn(self, prompt: bytes, tokens: int, beside_bytes: int = 0) -> None:
        """Take in one answered request; lists of token ids and counts that are not positive are ignored."""
        if not _is_id_list(prompt):
            self._ratio.learn(float(len(prompt) + beside_bytes), float(tokens))

    def tokens(self, prompt: bytes, beside_bytes: int = 0) -> int:
        """Return the expected tokens of a prompt, at least 1."""
        if _is_id_list(prompt):
            return prompt.count(b",") + 1
        return round(self._ratio.tokens(float(len(prompt) + beside_bytes)))


def _is_id_list(prompt: bytes) -> bool:
    """Whether it is a JSON list of token ids, or of such lists: `[1, 2]`, `[[1, 2], [3]]`."""
    if not prompt.startswith(_OPENING):  # a JSON string begins with its quote
        return False
    return prompt[:64].lstrip(b"[ \t\r\n")[:1].isdigit()
