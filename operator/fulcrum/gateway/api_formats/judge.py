"""Judges the fields of a request that the two legs would judge differently. Compiled (hatch_build.py).

The prefill leg has other token limits than the client asked for and no stream. What an engine says of those fields is
therefore said here, before the prefill leg; all other fields are the same in both legs, so engines judge them alike.
Each route reads only what vLLM reads there (`tests/benchmarks/test_request_models.py` compares).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, COMPLETIONS_PATH, StreamOptions
from fulcrum.gateway.errors import bad_request

COMPLETION_TOKENS: Final = 16
"""Most output tokens of a completion that does not say how many, as in vLLM."""
MOST_TOKENS: Final = 1 << 24
"""Most tokens of an answer where the model's length is not known: `spec.model.maxModelLen` cannot be larger."""
_TEMPLATE_TOKENS: Final = 1024
"""Tokens that a chat template may add to a prompt, for the question whether `min_tokens` surely fits beside it."""
ALLOWED_XARGS: Final[frozenset[str]] = frozenset()
"""Keys of `vllm_xargs` that a client may send: extensions of the engine read them unchecked, and connectors too."""
CONNECTOR_FIELDS: Final = frozenset(("kv_transfer_params", "ec_transfer_params"))
"""They name a peer to read KV from: from a client they would read another client's KV, or any host."""
GUARDED_FIELDS: Final = frozenset((*CONNECTOR_FIELDS, "vllm_xargs", "priority", "prompt_embeds"))
"""Fields of a request that may not reach an engine as a client sent them, on any route."""
WHOLE_WHEN_SET: Final = {
    "echo": "echoed logprobs need the prompt's logits, which are not in the KV cache",
    "use_beam_search": "beams are separate engine requests; the KV of one prefill serves only one",
}
WHOLE_WHEN_PRESENT: Final = {
    "prompt_logprobs": "as echo",
    "truncate_prompt_tokens": "the cut may depend on max_tokens, which differs between the legs",
    "suffix": "the engine refuses it, or makes another prompt of it",
}
JUDGED: Final = frozenset(
    (
        *WHOLE_WHEN_SET, *WHOLE_WHEN_PRESENT, "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "min_tokens", "n", "return_token_ids",
    )
)  # fmt: skip
"""Fields that this module looks at. `n`: several sequences would pull the same KV; the first one frees it."""
READ: Final = {CHAT_PATH: JUDGED - {"suffix"}, COMPLETIONS_PATH: JUDGED - {"max_completion_tokens"}}
"""Those of each route: an engine ignores the others there."""
_FLAGS: Final = ("stream", "return_token_ids", *WHOLE_WHEN_SET)


_options_decoder: Final = msgspec.json.Decoder(StreamOptions)
_xargs_decoder: Final = msgspec.json.Decoder(dict[str, Raw])


class Judged:
    """What was found."""

    __slots__ = ("max_tokens", "stream", "whole")

    def __init__(self, *, stream: bool, whole: bool, max_tokens: int | None) -> None:
        self.stream = stream
        self.whole = whole
        """Only one leg can carry it."""
        self.max_tokens = max_tokens
        """Most output tokens of each sequence; None: as many as the model's length leaves."""


def take_guarded(fields: dict[str, Raw]) -> None:
    """Take out of `fields` what must not reach an engine. Raises RequestError (400) for what cannot be left out."""
    fields.pop("priority", None)  # a class has one, a client cannot raise itself
    for name in CONNECTOR_FIELDS:
        if is_set(fields.pop(name, None)):
            raise bad_request(f"`{name}` is set by the gateway and cannot be sent by a client.", param=name)
    if is_set(fields.pop("prompt_embeds", None)):
        raise bad_request(
            "`prompt_embeds` is not taken here: send the prompt as text or token ids.", param="prompt_embeds"
        )
    xargs = fields.pop("vllm_xargs", None)
    if xargs is None or not is_set(xargs):
        return
    try:
        keys = _xargs_decoder.decode(xargs).keys()
    except msgspec.DecodeError:
        raise bad_request("`vllm_xargs` must be an object.", param="vllm_xargs") from None
    if not keys <= ALLOWED_XARGS:
        raise bad_request("`vllm_xargs` is not taken here.", param="vllm_xargs")
    if keys:
        fields["vllm_xargs"] = xargs


def judge(fields: dict[str, Raw], *, chat: bool, prompt_bytes: int, max_model_len: int | None) -> Judged:
    """Judge the fields of one request. Raises RequestError (400)."""
    if fields.keys().isdisjoint(JUDGED):
        return Judged(stream=False, whole=False, max_tokens=None if chat else COMPLETION_TOKENS)
    for name in _FLAGS:
        check_flag(fields, name)
    stream = is_true(fields, "stream")
    _check_stream_options(fields.get("stream_options"), stream=stream)
    whole = (
        is_true(fields, "echo")
        or is_true(fields, "use_beam_search")
        or is_set(fields.get("prompt_logprobs"))
        or is_set(fields.get("truncate_prompt_tokens"))
        or (not chat and is_set(fields.get("suffix")))
        or _several(fields.get("n"))
    )
    max_tokens = _max_tokens(fields, chat=chat, max_model_len=max_model_len)
    least = _min_tokens(fields, max_tokens)
    if max_model_len is not None and least + prompt_bytes + _TEMPLATE_TOKENS > max_model_len:
        # How much the prompt leaves for the answer is for the engine to say, once.
        whole = whole or least > 1
    return Judged(stream=stream, whole=whole, max_tokens=max_tokens)


def check_flag(fields: dict[str, Raw], name: str) -> None:
    """Raises RequestError (400) for what is neither true nor false: engines would read more into it."""
    value = fields.get(name)
    if value is not None and bytes(value) not in (b"true", b"false", b"null"):
        raise bad_request(f"`{name}` must be true or false.", param=name)


def is_set(value: Raw | None) -> bool:
    """Whether a field is there and not null."""
    return value is not None and bytes(value) != b"null"


def is_true(fields: dict[str, Raw], name: str) -> bool:
    """Whether a field is `true`."""
    value = fields.get(name)
    return value is not None and bytes(value) == b"true"


def _several(value: Raw | None) -> bool:
    return value is not None and is_set(value) and read_count(value, "n") > 1


def _check_stream_options(value: Raw | None, *, stream: bool) -> None:
    if value is None or not is_set(value):
        return
    try:
        _options_decoder.decode(value)
    except msgspec.DecodeError:
        raise bad_request("`stream_options` must be an object of true and false.", param="stream_options") from None
    if not stream and bytes(value)[1:-1].strip():
        raise bad_request("`stream_options` needs `stream`: true.", param="stream_options")


def _max_tokens(fields: dict[str, Raw], *, chat: bool, max_model_len: int | None) -> int | None:
    """Most output tokens: what the engine takes on this route."""
    name, value = "max_tokens", fields.get("max_tokens")
    read = None if value is None or not is_set(value) else read_count(value, name)
    if chat and (other := fields.get("max_completion_tokens")) is not None and is_set(other):
        name = "max_completion_tokens"
        read = read_count(other, name)
    if read is None:
        return None if chat else COMPLETION_TOKENS
    if read == 0 and not chat and is_true(fields, "echo"):
        return 0  # the prompt alone
    if read == 0:
        raise bad_request(f"`{name}` must be at least 1.", param=name)
    return within_length(read, name, max_model_len)


def within_length(tokens: int, name: str, max_model_len: int | None) -> int:
    """The most output tokens that a client asks for. Raises RequestError (400) where no model could make as many."""
    if tokens > (most := max_model_len or MOST_TOKENS):
        raise bad_request(f"`{name}` must not be above the model's length of {most} tokens.", param=name)
    return tokens


def _min_tokens(fields: dict[str, Raw], max_tokens: int | None) -> int:
    value = fields.get("min_tokens")
    if value is None:
        return 0
    if not is_set(value):
        raise bad_request("`min_tokens` must be an integer.", param="min_tokens")
    read = read_count(value, "min_tokens")
    if max_tokens is not None and read > max(max_tokens, 1):
        raise bad_request("`min_tokens` must not be above the most tokens.", param="min_tokens")
    return read


def read_count(value: Raw, name: str) -> int:
    """A count as engines read it. Raises RequestError (400)."""
    try:
        number = msgspec.json.decode(value, type=int)
    except msgspec.DecodeError:
        number = _integral(value, name)
    if number < 0:
        raise bad_request(f"`{name}` must not be negative.", param=name)
    return number


def _integral(value: Raw, name: str) -> int:
    """A number like `3.0`, which the engine takes for an integer."""
    try:
        number = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        number = 0.5
    if not number.is_integer():
        raise bad_request(f"`{name}` must be an integer.", param=name)
    return int(number)
