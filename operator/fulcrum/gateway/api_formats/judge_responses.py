"""Judges the fields of OpenAI's Responses: what the two legs would judge differently, and what needs a store.

Nothing is stored: workers are interchangeable, and vLLM's own store grows without bound. Compiled (hatch_build.py).
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from fulcrum.gateway.api_formats.judge import Judged, check_flag, is_set, is_true, read_count, within_length
from fulcrum.gateway.errors import RequestError, bad_request

READ: Final = frozenset(
    (
        "stream", "max_output_tokens", "truncation", "store", "background", "request_id", "previous_response_id",
        "previous_input_messages", "enable_response_messages",
    )
)  # fmt: skip
"""Fields of vLLM's route that this module looks at."""
_STORED: Final = ("previous_response_id", "conversation")
"""They name what would have been stored."""
_NOT_TAKEN: Final = {
    "previous_input_messages": "send all of the conversation as `input`",
    "enable_response_messages": "answers have what OpenAI's have",
}
"""Extensions of vLLM. The first is a prompt that no length or medium is read of."""
_FALSE: Final = Raw(b"false")
_NULL: Final = b"null"
_DISABLED: Final = b'"disabled"'


def judge_responses(fields: dict[str, Raw], *, max_model_len: int | None) -> Judged:
    """Judge the fields of one request, and see to it that nothing is stored. Raises RequestError (400)."""
    # null is as good as absent. Of some fields vLLM takes it and then cannot answer: the answer repeats them.
    for name in [name for name, value in fields.items() if _is_null(value)]:
        del fields[name]
    for name in ("stream", "store", "background", "enable_response_messages"):
        check_flag(fields, name)
    for name in _STORED:
        if is_set(fields.get(name)):
            raise _not_stored(name)
    if is_true(fields, "background"):
        raise _not_stored("background")
    for name, instead in _NOT_TAKEN.items():
        if is_set(value := fields.get(name)) and value is not None and bytes(value) != b"false":
            raise bad_request(f"`{name}` is not taken here: {instead}.", param=name)
    fields["store"] = _FALSE
    fields.pop("request_id", None)  # the gateway's, as that of each other route
    max_tokens = None
    value = fields.get("max_output_tokens")
    if value is not None and is_set(value):
        max_tokens = within_length(read_count(value, "max_output_tokens"), "max_output_tokens", max_model_len)
        if max_tokens == 0:
            raise bad_request("`max_output_tokens` must be at least 1.", param="max_output_tokens")
    # The cut may depend on the most output tokens, which differ between the legs.
    truncation = fields.get("truncation")
    whole = truncation is not None and bytes(truncation) != _DISABLED
    return Judged(stream=is_true(fields, "stream"), whole=whole, max_tokens=max_tokens)


def _is_null(value: Raw) -> bool:
    return len(memoryview(value)) == len(_NULL) and bytes(value) == _NULL


def _not_stored(name: str) -> RequestError:
    return bad_request(
        f"`{name}` is not taken here: nothing is stored. Send all of the conversation as `input`.", param=name
    )
