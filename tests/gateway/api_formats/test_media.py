"""Images and recordings: their bytes are no tokens, and what may not reach an engine is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.conftest import SERVED
from tests.machine import cost_ratio

from fulcrum.gateway.api_formats import media
from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, ServedModel
from fulcrum.gateway.api_formats.prompt_estimate import PromptEstimate
from fulcrum.gateway.errors import RequestError

IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 375_000).decode()
TEXT = {"type": "text", "text": "What is in this picture? " * 10}
FETCHES = ServedModel(name="m", media_urls=True)


def chat(*parts: Any) -> bytes:
    return json.dumps([{"role": "user", "content": list(parts)}], separators=(",", ":")).encode()


def image(url: str = IMAGE) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def inspect(messages: bytes) -> tuple[int, int]:
    return media.inspect(messages, urls=True)


def tokens(estimate: PromptEstimate, messages: bytes) -> int:
    return estimate.tokens(messages, media=inspect(messages))


def learn(estimate: PromptEstimate, messages: bytes, prompt_tokens: int) -> None:
    estimate.learn(messages, prompt_tokens, media=inspect(messages))


@pytest.mark.parametrize(
    "part",
    [image(), {"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}}, image("https://x/y.png")],
)
def test_a_media_part_is_a_bounded_number_of_tokens(part: dict[str, Any]) -> None:
    estimate = PromptEstimate()
    text = tokens(estimate, chat(TEXT))
    assert text + 16 <= tokens(estimate, chat(TEXT, part)) <= text + 16_384
    assert tokens(estimate, chat(TEXT, part, part)) > tokens(estimate, chat(TEXT, part))


def test_what_engines_report_of_images_is_learned_and_texts_are_estimated_as_before() -> None:
    estimate = PromptEstimate()
    before = tokens(estimate, chat(TEXT))
    for _ in range(100):
        learn(estimate, chat(TEXT, image()), 576 + before)
    assert tokens(estimate, chat(TEXT)) == before
    assert tokens(estimate, chat(TEXT, image())) == pytest.approx(576 + before, abs=10)
    for count in (1, 10**9):
        for _ in range(200):
            learn(estimate, chat(image()), count)
        assert 1 <= tokens(estimate, chat(image())) <= 17_000


@pytest.mark.parametrize(
    "hidden",
    [
        {"type": "text", "text": IMAGE},
        {"type": "text", "text": 'a "type":"image_url" ' + "x" * 100_000},
        {"type": "image_url", "image_url": {"url": "data:u"}, "text": "x" * 100_000},
        {"type": "thinking", "thinking": "x" * 100_000},
        {"text": "x" * 100_000},
    ],
)
def test_text_does_not_hide_as_media(hidden: dict[str, Any]) -> None:
    assert inspect(chat(hidden))[1] < 100
    assert tokens(PromptEstimate(), chat(hidden)) > 20_000


@pytest.mark.parametrize("body", [b'"type"', b"[1,2]", b'[{"content":5}]', b'[{"type":1}]', b'["type"]'])
def test_what_is_no_chat_is_text(body: bytes) -> None:
    assert inspect(body) == (0, 0)


def test_eight_mebibytes_of_images_cost_little_more_than_reading_them() -> None:
    body = chat(*[image()] * 4)
    assert inspect(body)[0] == 4
    assert cost_ratio(lambda: json.loads(body), lambda: inspect(body)) < 5


@pytest.mark.parametrize("begin", ['[{"type":"image_url"},', '[{"content":[{"type":"text","image_url":null},'])
def test_millions_of_parts_are_not_read(begin: str) -> None:
    end = "]" if begin.count("[") == 1 else "]}]"
    body = (begin + ",".join(["{}"] * 2_600_000) + end).encode()

    def look() -> None:
        if begin.count("[") == 1:
            assert inspect(body) == (0, 0)
        else:
            with pytest.raises(RequestError, match="more than 32768 objects"):
                inspect(body)

    assert cost_ratio(lambda: json.loads(body), look, rounds=3) < 0.5


def test_braces_in_texts_are_no_objects() -> None:
    body = chat({"type": "text", "text": '{"image_url": "a\\"b"}' * 50_000}, image())
    assert inspect(body)[0] == 1


def test_what_stands_beside_a_medium_in_its_part_counts_as_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:u"}, "note": "x" * 100_000}
    assert inspect(chat(part))[1] < 100


def plain(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def escaped(body: dict[str, Any]) -> bytes:
    """The same with every letter of every string as a JSON escape."""

    def write(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{write(key)}:{write(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(write, value)) + "]"
        if isinstance(value, str):
            return '"' + "".join(f"\\u{ord(letter):04x}" for letter in value) + '"'
        return json.dumps(value)

    return write(body).encode()


def twice(body: dict[str, Any]) -> bytes:
    """Each key of a part twice: the last one counts."""
    return json.dumps(body).replace('"content"', '"content":"x","content"').encode()


WRITERS = [plain, escaped, twice]
TENSORS: list[dict[str, Any]] = [
    *({"type": name, name: "AAAA"} for name in media.EMBEDS),
    *({name: "AAAA"} for name in media.EMBEDS),
    *({"type": "text", "text": "x", "uuid": "u", name: None} for name in media.EMBEDS),
    *({"type": name} for name in media.EMBEDS),
    {"type": "prompt_embeds", "data": "AAAA"},
]
LINKS: list[dict[str, Any]] = [
    *({"type": name, name: {"url": "http://a/b"}} for name in media.URLS),
    *({name: "https://a/b"} for name in media.URLS),
    *({"type": "text", "text": "x", "uuid": "u", name: {"url": "HTTP://a/b"}} for name in media.URLS),
    {"type": "input_image", "image_url": "http://a/b"},
]
FILES = [
    {"type": name, name: {"url": url}} for name in media.URLS for url in ("file:///etc/passwd", " data:x", "ftp:x")
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("part", TENSORS)
def test_no_tensor_reaches_an_engine(part: dict[str, Any], write: Callable[[dict[str, Any]], bytes]) -> None:
    body = write({"messages": [{"role": "user", "content": [TEXT, part]}]})
    with pytest.raises(RequestError, match="is not taken here"):
        read_request(CHAT_PATH, body, FETCHES)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("part", LINKS)
def test_urls_are_for_engines_that_have_a_list_of_domains(
    part: dict[str, Any], write: Callable[[dict[str, Any]], bytes]
) -> None:
    body = write({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": [TEXT, part]}]})
    with pytest.raises(RequestError, match="fetches no media"):
        read_request(CHAT_PATH, body, SERVED)
    assert read_request(CHAT_PATH, body, FETCHES).measure_media()[0] == 1


@pytest.mark.parametrize("part", FILES)
def test_only_data_and_http_are_media(part: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be an http"):
        read_request(CHAT_PATH, plain({"messages": [{"role": "user", "content": [part]}]}), FETCHES)


@pytest.mark.parametrize(
    "content", [[7, "_url"], [None, "_url"], [["_url"]], [{"image_url": 7}], [{"image_url": ["x"]}]]
)
def test_what_cannot_be_read_surely_is_refused(content: list[Any]) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_request(CHAT_PATH, plain({"messages": [{"role": "user", "content": content}]}), FETCHES)
