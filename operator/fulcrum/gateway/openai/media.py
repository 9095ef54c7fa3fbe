"""Images and recordings in a chat: how many, and how many bytes of the prompt they are."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

_MARK: Final = b'"type"'
"""A prompt without it has no parts, so no media: most prompts are not searched."""
_MOST_OBJECTS: Final = 32_768
"""Most JSON objects of a prompt that is searched for media: each costs 0.1 us of the event loop."""
_MEDIA_TYPES: Final = frozenset(
    ("image_url", "input_image", "image_pil", "image_embeds", "input_audio", "audio_url", "audio_embeds", "video_url")
)
_NOTHING: Final = Raw(b"")


class _Part(msgspec.Struct):
    type: str = ""
    text: Raw | msgspec.UnsetType = msgspec.UNSET
    # Where media are; what else a part has counts as text.
    image_url: Raw = _NOTHING
    image_pil: Raw = _NOTHING
    image_embeds: Raw = _NOTHING
    input_audio: Raw = _NOTHING
    audio_url: Raw = _NOTHING
    audio_embeds: Raw = _NOTHING
    video_url: Raw = _NOTHING


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


_messages: Final = msgspec.json.Decoder(list[_Message])


def measure(prompt: bytes) -> tuple[int, int]:
    """Media parts in a chat's messages, and their bytes. What is not surely one of them counts as text.

    The parts are read as the engine reads them: a marker within a text would let a client hide a long one.
    """
    if not prompt.startswith(b"[") or _MARK not in prompt or prompt.count(b"{") > _MOST_OBJECTS:
        return 0, 0
    count = size = 0
    try:
        for message in _messages.decode(prompt):
            if not isinstance(message.content, list):
                continue
            for part in message.content:
                if part.type in _MEDIA_TYPES and part.text is msgspec.UNSET:
                    count += 1
                    size += sum(
                        len(memoryview(value))
                        for value in (
                            part.image_url, part.image_pil, part.image_embeds, part.input_audio, part.audio_url,
                            part.audio_embeds, part.video_url,
                        )
                    )  # fmt: skip
    except (msgspec.DecodeError, RecursionError):
        return 0, 0  # for the engine to refuse
    return count, size
