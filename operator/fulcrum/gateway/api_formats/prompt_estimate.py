"""How long a prompt is, where the engine did not say: from its bytes, by what answered requests have taught."""

from __future__ import annotations

from typing import Final

from fulcrum.admission import TokenRatio

_OPENING: Final = b"["
_PRIOR_MEDIA_TOKENS: Final = 1024.0
"""Tokens of an image or a recording until engines have reported some: models take 64 to 16,384, most of them 256 to
2,048."""
_LEAST_MEDIA_TOKENS: Final = 16.0
_MOST_MEDIA_TOKENS: Final = 16_384.0
_MEMORY: Final = 0.1
"""Weight of one prompt in the mean."""


class PromptEstimate:
    """Tokens of a prompt from its undecoded JSON; one for each route, because chat templates add tokens.

    A list of token ids is counted. The ratio of bytes to tokens of all other text is learned online, and so are the
    tokens of an image or a recording, whose bytes say nothing about them. `beside_bytes` is what the prompt is made of
    besides: tools are written into it by the chat template. `media`: the images and recordings in it, and their bytes.
    """

    __slots__ = ("_media_tokens", "_ratio")

    def __init__(self) -> None:
        self._ratio = TokenRatio()
        self._media_tokens = _PRIOR_MEDIA_TOKENS

    def learn(self, prompt: bytes, tokens: int, beside_bytes: int = 0, media: tuple[int, int] = (0, 0)) -> None:
        """Take in one answered request; lists of token ids and counts that are not positive are ignored."""
        if tokens <= 0 or _is_id_list(prompt):
            return
        parts, media_bytes = media
        text_bytes = float(len(prompt) - media_bytes + beside_bytes)
        if not parts:
            self._ratio.learn(text_bytes, float(tokens))
            return
        each = (tokens - self._ratio.tokens(text_bytes)) / parts
        self._media_tokens += _MEMORY * (min(max(each, _LEAST_MEDIA_TOKENS), _MOST_MEDIA_TOKENS) - self._media_tokens)

    def tokens(self, prompt: bytes, beside_bytes: int = 0, media: tuple[int, int] = (0, 0)) -> int:
        """Return the expected tokens of a prompt, at least 1."""
        if _is_id_list(prompt):
            return prompt.count(b",") + 1
        parts, media_bytes = media
        text_tokens = self._ratio.tokens(float(len(prompt) - media_bytes + beside_bytes))
        return round(text_tokens + parts * self._media_tokens)


def _is_id_list(prompt: bytes) -> bool:
    """Whether it is a JSON list of token ids, or of such lists: `[1, 2]`, `[[1, 2], [3]]`."""
    if not prompt.startswith(_OPENING):  # a JSON string begins with its quote
        return False
    return prompt[:64].lstrip(b"[ \t\r\n")[:1].isdigit()
