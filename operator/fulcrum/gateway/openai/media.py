"""Images and recordings in a chat: how many, and how many bytes of the prompt they are."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

MEDIA_MARK: Final = b'"type"'
"""A prompt without it has no parts, so no media: most prompts need not be looked into."""
_MEDIA_TYPES: Final = frozenset(
    ("image_url", "input_image", "image_pil", "image_embeds", "input_audio", "audio_url", "audio_embeds", "video_url")
)


class _Message(msgspec.Struct):
    content: Raw = Raw(b"null")


class _Part(msgspec.Struct):
    type: str = ""
    text: Raw | msgspec.UnsetType = msgspec.UNSET


_messages: Final = msgspec.json.Decoder(list[_Message])
_parts: Final = msgspec.json.Decoder(list[Raw])
_part: Final = msgspec.json.Decoder(_Part)


def measure(messages: bytes) -> tuple[int, int]:
    """Media parts in a chat's messages, and their bytes. What is not surely one of them counts as text.

    The parts are read as the engine reads them: a marker within a text would let a client hide a long one.
    """
    count = size = 0
    try:
        for message in _messages.decode(messages):
            content = bytes(message.content)
            if content[:1] != b"[":
                continue
            for raw in _parts.decode(content):
                part = _part.decode(raw)
                if part.type in _MEDIA_TYPES and part.text is msgspec.UNSET:
                    count += 1
                    size += len(bytes(raw))
    except (msgspec.DecodeError, RecursionError):
        return 0, 0  # for the engine to refuse
    return count, size
