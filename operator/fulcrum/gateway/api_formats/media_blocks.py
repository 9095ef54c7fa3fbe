"""Images and recordings in the prompts of Anthropic's Messages and of OpenAI's Responses: as `media` does it for chats.

Both are decoded as engines decode them. What an engine could fetch is refused wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from fulcrum.gateway.api_formats.media import EMBEDS, MEDIA_TYPES, URLS, check_objects, check_url
from fulcrum.gateway.errors import bad_request

_SOURCE_MARKS: Final = (b'"source"', b"\\u00")
"""One of them is in all messages with images, whatever of them is escaped."""
_INPUT_MARKS: Final = (b"_url", b"_embeds", b"_pil", b"input_image", b"input_audio", b"\\u00")
"""The same for the items of a response's input."""
_FETCHES: Final = (*URLS, "file_url")


def inspect_messages(messages: bytes, *, urls: bool) -> tuple[int, int]:
    """Images in Anthropic's messages (a JSON list), and their bytes. Raises RequestError (400) for what is refused.

    `urls`: engines may fetch by http(s). Blocks of tool results can have images, too; the input of a tool is text.
    """
    if not any(mark in messages for mark in _SOURCE_MARKS):
        return 0, 0
    count = size = 0
    for message in _items(_decode(messages, "messages")):
        for block in _items(message.get("content")):
            for each in (block, *_items(block.get("content"))):
                if isinstance(source := each.get("source"), dict):
                    count += 1
                    size += len(str(source.get("data", "")))
                    if source.get("type") == "url":
                        check_url("source", source.get("url", ""), urls=urls, param="messages")
    return count, size


def inspect_input(items: bytes, *, urls: bool) -> tuple[int, int]:
    """The same for the input of a response: text, or a JSON list of items, in which media may stand anywhere."""
    if not items.startswith(b"[") or not any(mark in items for mark in _INPUT_MARKS):
        return 0, 0
    count = size = 0
    waiting: list[Any] = [_decode(items, "input")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            found = _judge(value, urls=urls)
            count += found is not None
            size += found or 0
            waiting.extend(each for each in value.values() if isinstance(each, list | dict))
    return count, size


def _judge(part: dict[str, Any], *, urls: bool) -> int | None:
    """Bytes of the media that a part is; None: it is none. Raises RequestError (400)."""
    kind = part.get("type")
    for name in EMBEDS:
        if kind == name or name in part:
            raise bad_request(f"`{name}` is not taken here: send text, images or recordings.", param="input")
    found: int | None = 0 if isinstance(kind, str) and kind in MEDIA_TYPES else None
    for name in _FETCHES:
        if name in part:
            value = part[name]
            url = value.get("url") if isinstance(value, dict) else value
            check_url(name, url, urls=urls, param="input")
            found = (found or 0) + len(str(url))
    if "input_audio" in part:
        found = (found or 0) + len(str(part["input_audio"]))
    return found


def _decode(text: bytes, param: str) -> Any:
    check_objects(text, param)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(f"`{param}` cannot be read.", param=param) from None


def _items(value: object) -> Iterator[dict[str, Any]]:
    """The objects in a list; none where it is none, which is for the engine to judge."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield each
