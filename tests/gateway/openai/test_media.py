"""Images and recordings: their bytes are no tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.machine import cost_ratio

from fulcrum.gateway.openai.media import measure
from fulcrum.gateway.openai.prompt_estimate import PromptEstimate

IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 375_000).decode()
TEXT = {"type": "text", "text": "What is in this picture? " * 10}


def chat(*parts: Any) -> bytes:
    return json.dumps([{"role": "user", "content": list(parts)}], separators=(",", ":")).encode()


def image(url: str = IMAGE) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    "part",
    [image(), {"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}}, image("https://x/y.png")],
)
def test_a_media_part_is_a_bounded_number_of_tokens(part: dict[str, Any]) -> None:
    estimate = PromptEstimate()
    text = estimate.tokens(chat(TEXT))
    assert text + 16 <= estimate.tokens(chat(TEXT, part)) <= text + 16_384
    assert estimate.tokens(chat(TEXT, part, part)) > estimate.tokens(chat(TEXT, part))


def test_what_engines_report_of_images_is_learned_and_texts_are_estimated_as_before() -> None:
    estimate = PromptEstimate()
    before = estimate.tokens(chat(TEXT))
    for _ in range(100):
        estimate.learn(chat(TEXT, image()), 576 + before)
    assert estimate.tokens(chat(TEXT)) == before
    assert estimate.tokens(chat(TEXT, image())) == pytest.approx(576 + before, abs=10)
    for tokens in (1, 10**9):
        for _ in range(200):
            estimate.learn(chat(image()), tokens)
        assert 1 <= estimate.tokens(chat(image())) <= 17_000


@pytest.mark.parametrize(
    "hidden",
    [
        {"type": "text", "text": IMAGE},
        {"type": "text", "text": 'a "type":"image_url" ' + "x" * 100_000},
        {"type": "image_url", "image_url": {"url": "u"}, "text": "x" * 100_000},
        {"type": "thinking", "thinking": "x" * 100_000},
        {"text": "x" * 100_000},
    ],
)
def test_text_does_not_hide_as_media(hidden: dict[str, Any]) -> None:
    assert measure(chat(hidden)) == (0, 0)
    assert PromptEstimate().tokens(chat(hidden)) > 20_000


@pytest.mark.parametrize(
    "body", [b'"type"', b"[1,2]", b'[{"content":5}]', b'[{"type":1}]', b'["type"]', b'[{"content":[{"type":7}]}]']
)
def test_what_is_no_chat_is_text(body: bytes) -> None:
    assert measure(body) == (0, 0)


def test_eight_mebibytes_of_images_cost_little_more_than_reading_them() -> None:
    body = chat(*[image()] * 4)
    assert measure(body)[0] == 4
    assert cost_ratio(lambda: json.loads(body), lambda: measure(body)) < 5


@pytest.mark.parametrize("begin", ['[{"type":"x"},', '[{"content":[{"type":"text"},'])
def test_millions_of_parts_are_not_read(begin: str) -> None:
    end = "]" if begin.count("[") == 1 else "]}]"
    body = (begin + ",".join(["{}"] * 2_600_000) + end).encode()
    assert measure(body) == (0, 0)
    assert cost_ratio(lambda: json.loads(body), lambda: measure(body), rounds=3) < 0.2


def test_what_stands_beside_a_medium_in_its_part_counts_as_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "u"}, "note": "x" * 100_000}
    assert measure(chat(part))[1] < 100
