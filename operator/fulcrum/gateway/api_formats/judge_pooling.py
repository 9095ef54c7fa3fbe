"""Judges what is asked of a pooling model: text or token ids, whose answer comes with them.

Engines would take media here as well, by URL from any host: only text and token ids are let through.
Compiled (hatch_build.py).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.inference_request import EMBEDDINGS_PATH, RERANK_PATH
from fulcrum.gateway.api_formats.judge import Judged, is_set
from fulcrum.gateway.errors import RequestError, bad_request

MOST_TEXTS: Final = 2048
"""Most texts of one request, as OpenAI has it: one worker computes them all, and no other request can be between."""
SCORED: Final = {"queries": ("text_1", "data_1"), "documents": ("text_2", "data_2", "items")}
"""Fields of `/v1/score`, and other names that vLLM takes for them."""
FORMATS: Final = (b'"float"', b'"base64"')
"""Of an embedding. vLLM's others are no JSON, and need headers that say how to read them."""
_QUOTE: Final = b'"'
_ESCAPED_QUOTE: Final = b'\\"'

_texts_decoder: Final = msgspec.json.Decoder(list[str])


def judge_pooling(path: str, fields: dict[str, Raw]) -> Judged:
    """Judge the fields of one request. Raises RequestError (400)."""
    fields.pop("request_id", None)  # the gateway's
    if path == EMBEDDINGS_PATH:
        _judge_embeddings(fields)
    elif path == RERANK_PATH:
        _check_texts(fields, "query", many=False, ids=False)
        _check_texts(fields, "documents", many=True, ids=False)
    else:
        for name, others in SCORED.items():
            _rename(fields, name, others)
            _check_texts(fields, name, many=True, ids=False)
    return Judged(stream=False, whole=True, max_tokens=1)


def _judge_embeddings(fields: dict[str, Raw]) -> None:
    if is_set(fields.pop("messages", None)):
        raise bad_request("`messages` is not taken here: send text or token ids as `input`.", param="messages")
    _check_texts(fields, "input", many=True, ids=True)
    value = fields.get("encoding_format")
    if value is not None and is_set(value) and bytes(value) not in FORMATS:
        raise bad_request("`encoding_format` must be float or base64.", param="encoding_format")


def _rename(fields: dict[str, Raw], name: str, others: tuple[str, ...]) -> None:
    """Call a field by its first name, so that the engine and the gateway read the same one."""
    for other in others:
        value = fields.pop(other, None)
        if value is None or not is_set(value):
            continue
        if is_set(fields.get(name)):
            raise bad_request(f"`{other}` is another name of `{name}`: send one of them.", param=other)
        fields[name] = value


def _check_texts(fields: dict[str, Raw], name: str, *, many: bool, ids: bool) -> None:
    """Raises RequestError (400) for what is neither text nor, with `ids`, token ids, and for too many of them."""
    value = fields.get(name)
    if value is None or not is_set(value):
        raise bad_request(f"`{name}` is required.", param=name, code="missing_required_parameter")
    inside = bytes(value)
    if inside[:1] == _QUOTE:
        return
    if inside[:1] != b"[" or not many:
        raise _wrong_kind(name, many=many, ids=ids)
    first = inside[1:64].lstrip()[:1]
    if first == b"]":
        raise bad_request(f"`{name}` must not be empty.", param=name)
    if first == _QUOTE:
        count = _count_texts(value, inside, name, ids=ids)
    elif ids and (first.isdigit() or first == b"["):
        if b"{" in inside or _QUOTE in inside:
            raise _wrong_kind(name, many=many, ids=ids)
        count = max(inside.count(b"[") - 1, 1)
    else:
        raise _wrong_kind(name, many=many, ids=ids)
    if count > MOST_TEXTS:
        raise _too_many(name)


def _count_texts(value: Raw, inside: bytes, name: str, *, ids: bool) -> int:
    # Each text has two quotes that are not escaped: a million texts are not read to be counted.
    if inside.count(_QUOTE) - inside.count(_ESCAPED_QUOTE) > 2 * MOST_TEXTS:
        raise _too_many(name)
    try:
        return len(_texts_decoder.decode(value))
    except msgspec.DecodeError:
        raise _wrong_kind(name, many=True, ids=ids) from None


def _too_many(name: str) -> RequestError:
    return bad_request(f"`{name}` has more than {MOST_TEXTS} texts: send several requests.", param=name)


def _wrong_kind(name: str, *, many: bool, ids: bool) -> RequestError:
    what = "a text" if not many else "a text or a list of texts"
    also = ", or token ids" if ids else ""
    return bad_request(f"`{name}` must be {what}{also}.", param=name)
