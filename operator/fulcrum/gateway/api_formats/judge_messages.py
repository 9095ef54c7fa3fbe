"""Judges the fields of Anthropic's Messages that the two legs would judge differently. Compiled (hatch_build.py)."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.judge import Judged, check_flag, is_set, is_true, read_count, within_length
from fulcrum.gateway.errors import bad_request

READ: Final = frozenset(("stream", "max_tokens", "thinking"))
"""Fields of the route that this module looks at."""
_object_decoder: Final = msgspec.json.Decoder(dict[str, Raw])


def judge_messages(fields: dict[str, Raw], *, max_model_len: int | None) -> Judged:
    """Judge the fields of one request. Raises RequestError (400)."""
    check_flag(fields, "stream")
    value = fields.get("max_tokens")
    if value is None or not is_set(value):
        raise bad_request("`max_tokens` is required.", param="max_tokens", code="missing_required_parameter")
    max_tokens = within_length(read_count(value, "max_tokens"), "max_tokens", max_model_len)
    if max_tokens == 0:
        raise bad_request("`max_tokens` must be at least 1.", param="max_tokens")
    _check_thinking(fields.get("thinking"), max_tokens)
    return Judged(stream=is_true(fields, "stream"), whole=False, max_tokens=max_tokens)


def _check_thinking(value: Raw | None, max_tokens: int) -> None:
    """vLLM compares the budget with `max_tokens`, but not in a prefill leg."""
    if value is None or not is_set(value):
        return
    try:
        budget = _object_decoder.decode(value).get("budget_tokens")
    except msgspec.DecodeError:
        raise bad_request("`thinking` must be an object.", param="thinking") from None
    if budget is not None and is_set(budget) and read_count(budget, "thinking.budget_tokens") >= max_tokens:
        raise bad_request("`thinking.budget_tokens` must be less than `max_tokens`.", param="thinking")
