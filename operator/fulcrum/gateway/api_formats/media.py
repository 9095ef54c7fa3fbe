"""Images and recordings in a chat: which are refused, how many, and how many bytes of the prompt they are.

Messages are decoded as the engine decodes them: a mark that is searched in the raw text could be hidden by an escape.
A part that has the key of a medium counts as one whatever its `type` says, because vLLM goes by the key where the type
is missing or the part has a `uuid`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.errors import bad_request

_NOTHING: Final = Raw(b"")
EMBEDS: Final = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds")
"""Serialized tensors, as keys and as types: they are loaded by `torch.load`, and bypass lengths and prefixes."""
URLS: Final = ("image_url", "audio_url", "video_url")
"""Keys of what an engine fetches."""
MEDIA_TYPES: Final = frozenset((*URLS, "image_pil", "input_audio", "input_image"))
"""Values of a part's `type` that make it a medium, beside `EMBEDS`."""
_DATA: Final = "data:"
_FETCHED: Final = ("http://", "https://")
_MOST_OBJECTS: Final = 32_768
"""Most JSON objects of messages that are decoded: each costs 0.1 us of the event loop."""
_MARKS: Final = (b"_url", b"_embeds", b"_pil", b"input_", b"\\u00")
"""One of them is in every chat with media, whatever of it is escaped: most prompts are not decoded."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class _Part(msgspec.Struct):
    type: Raw = _NOTHING
    # Where media are; what else a part has counts as text.
    image_url: Raw = _NOTHING
    audio_url: Raw = _NOTHING
    video_url: Raw = _NOTHING
    image_pil: Raw = _NOTHING
    input_audio: Raw = _NOTHING
    image_embeds: Raw = _NOTHING
    audio_embeds: Raw = _NOTHING
    video_embeds: Raw = _NOTHING
    prompt_embeds: Raw = _NOTHING


class _Message(msgspec.Struct):
    content: Raw = _NOTHING


class _Url(msgspec.Struct):
    url: str | None = None


_messages: Final = msgspec.json.Decoder(list[_Message])
_parts: Final = msgspec.json.Decoder(list[_Part | str])
_url: Final = msgspec.json.Decoder(str | _Url | None)


def inspect(messages: bytes, *, urls: bool) -> tuple[int, int]:
    """Media parts in a chat's messages (a JSON list), and their bytes. Raises RequestError (400) for what is refused.

    `urls`: engines may fetch media by http(s). What cannot be read surely is refused.
    """
    if messages.find(b"[", 1) < 0 or not any(mark in messages for mark in _MARKS):
        return 0, 0  # no list in the list: no parts
    check_objects(messages, "messages")
    count = size = 0
    try:
        for message in _messages.decode(messages):
            content = memoryview(message.content)
            if bytes(content[:1]) != b"[":
                continue
            for part in _parts.decode(content):
                if isinstance(part, _Part) and (media_bytes := _judge(part, urls=urls)):
                    count += 1
                    size += media_bytes
    except (msgspec.DecodeError, RecursionError):
        raise bad_request("`messages` cannot be read.", param="messages") from None
    return count, size


def check_objects(text: bytes, param: str) -> None:
    """Refuse JSON with so many objects that decoding it would take long. Raises RequestError (400)."""
    if text.count(b"{") > _MOST_OBJECTS and _STRING.sub(b"", text).count(b"{") > _MOST_OBJECTS:
        raise bad_request(f"`{param}` has more than {_MOST_OBJECTS} objects.", param=param)


def _judge(part: _Part, *, urls: bool) -> int:
    """Bytes of the media in one part; 0: it has none. Raises RequestError, msgspec.DecodeError."""
    kind = _text(part.type)
    for name in EMBEDS:
        if kind == name or memoryview(getattr(part, name)).nbytes > 0:
            raise bad_request(f"`{name}` is not taken here: send text, images or recordings.", param="messages")
    size = 0
    for name in URLS:
        value: Raw = getattr(part, name)
        if value_bytes := len(memoryview(value)):
            size += value_bytes
            read = _url.decode(value)
            check_url(name, read.url if isinstance(read, _Url) else read, urls=urls, param="messages")
    size += len(memoryview(part.image_pil)) + len(memoryview(part.input_audio))
    return max(size, kind in MEDIA_TYPES)


def check_url(name: str, url: object, *, urls: bool, param: str) -> None:
    """Raises RequestError (400) for what engines must not fetch; `urls`: they may by http(s)."""
    if url is None:
        return
    if isinstance(url, str) and (url[: len(_DATA)].lower() == _DATA or (urls and url.lower().startswith(_FETCHED))):
        return
    what = "an http(s) or `data:` URL" if urls else "a `data:` URL, because this cluster fetches no media"
    raise bad_request(f"`{name}` must be {what}.", param=param)


def _text(value: Raw) -> str:
    """A JSON string; empty for anything else, which no engine takes for a type."""
    if bytes(memoryview(value)[:1]) != b'"':
        return ""
    return msgspec.json.decode(value, type=str)
