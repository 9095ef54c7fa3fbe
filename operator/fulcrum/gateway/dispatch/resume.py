"""How a stream whose worker was lost goes on: which ones can, from where, and the request that another worker gets.

The new worker gets the prompt and the tokens so far as token ids, which is exact: no text is tokenized a second time.
A greedy stream goes on from the last token that the client has seen whole; where the engine held text back (stop
strings, incomplete UTF-8) a few tokens are made again, and what the client has already got of them is left out.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, COMPLETIONS_PATH, InferenceRequest
from fulcrum.gateway.dispatch.stream_log import StreamLog, StreamLogBudget

_TRUE: Final = Raw(b"true")
_FALSE: Final = Raw(b"false")
_ONE: Final = Raw(b"1")
_USAGE: Final = Raw(b'{"include_usage":true}')
_IDS: Final = "return_token_ids"
_NOTHING: Final = (b"null", b"false", b"[]", b"{}", b"0", b'"none"')
_OBSTACLES: Final = frozenset(
    (
        # More in the events than text, or text that depends on all of the output so far.
        "prompt_logprobs", "echo", "tools", "functions",
        "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "thinking_token_budget", "repetition_detection", "vllm_xargs", "return_prompt_text",
    )
)  # fmt: skip
_CHAT_OBSTACLES: Final = _OBSTACLES | {"logprobs", "top_logprobs"}
"""The rest of a stream comes from `/v1/completions`, whose `top_logprobs` name tokens by their text: of two with the
same text (halves of characters) one is missing, which a chat's have both."""
_LOGPROBS: Final = ("logprobs", "logprob_token_ids", "return_tokens_as_token_ids")
"""Carried over of a completion alone: a chat's `logprobs: false` would ask for them there."""
_CARRIED: Final[tuple[str, ...]] = (
    "model", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "temperature",
    "top_p", "top_k", "min_p", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "user", "priority", "cache_salt", "session_id",
    "stream_interval", "watermarking", "length_penalty",
)  # fmt: skip
_GREEDY_BELOW: Final = 1e-5
"""vLLM takes a lower temperature for 0."""
_LOOK_BACK: Final = 64
"""Last events of a stream that are searched for a place to resume from."""


def follow(request: InferenceRequest, budget: StreamLogBudget) -> StreamLog | None:
    """Begin to log the stream of `request`, if it can be resumed; its body then asks for token ids."""
    fields = request.fields
    if not request.stream or request.whole:
        return None
    obstacles = _CHAT_OBSTACLES if request.path == CHAT_PATH else _OBSTACLES
    if not fields.keys().isdisjoint(obstacles) and any(_says(fields, name) for name in obstacles):
        return None
    asked = fields.get(_IDS)
    if asked is not None and bytes(asked) == b"false":
        return None  # the client does not want to see them
    fields[_IDS] = _TRUE
    held_back = 0
    if "stop" in fields and not _says(fields, "include_stop_str_in_output"):
        held_back = longest_stop(fields) - 1
    return StreamLog(budget, held_back=max(held_back, 0), hides_prompt=asked is None or bytes(asked) != b"true")


def obstacle(request: InferenceRequest) -> str:
    """Why a stream that was followed cannot be resumed, whatever was sent of it; empty: it can be."""
    if request.path == CHAT_PATH and _has_media(request):
        return "its prompt has more in it than text"
    return ""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream goes on."""

    tokens: int
    """Tokens that are kept."""
    chars: int
    """Characters that they are."""
    again: str
    """Text after them that the client has already got."""


def resume_point(request: InferenceRequest, stream_log: StreamLog) -> Point | None:
    """Where to go on; None: it cannot be found."""
    stop_reach = 0
    if "stop" in request.fields and _says(request.fields, "include_stop_str_in_output"):
        stop_reach = max(longest_stop(request.fields) - 1, 0)
    exact = greedy(request)
    latest = max(stream_log.chars - (stop_reach if exact else 0), 0)
    marks = [mark for mark in stream_log.marks if mark[1] <= latest][-_LOOK_BACK:]
    if not marks:
        return None
    # Tokens without text at the end (half a character, special tokens) are made again.
    best = first = _first_of(marks, marks[-1][1])
    if exact:
        # An event of several tokens may end within a character: only one of a single token surely does not.
        while first and marks[first][2] != 1:
            first = _first_of(marks, marks[first - 1][1])
        best = first if marks[first][2] == 1 else best
    tokens, chars, *_ = marks[best]
    again = stream_log.tail(chars)
    return None if again is None else Point(tokens=tokens, chars=chars, again=again)


def _first_of(marks: list[tuple[int, int, int, int]], chars: int) -> int:
    return next(number for number, mark in enumerate(marks) if mark[1] == chars)


def probe_body(request: InferenceRequest) -> bytes:
    """Body of a request that tells the prompt's token ids, and leaves the prompt in the worker's prefix cache."""
    fields = request.fields.copy()
    for name in ("stream", "stream_options", "min_tokens"):
        fields.pop(name, None)
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    fields[_IDS] = _TRUE
    return msgspec.json.encode(fields)


class _PromptChoice(msgspec.Struct):
    prompt_token_ids: list[int] | None = None


class _PromptAnswer(msgspec.Struct):
    prompt_token_ids: list[int] | None = None
    choices: list[_PromptChoice] = []


def prompt_ids(answer: bytes) -> list[int] | None:
    """The prompt's token ids from the answer to a probe."""
    try:
        read = msgspec.json.decode(answer, type=_PromptAnswer)
    except msgspec.DecodeError:
        return None
    return read.prompt_token_ids or (read.choices[0].prompt_token_ids if read.choices else None)


def tokenize_body(request: InferenceRequest, text: str) -> bytes:
    """Body for `/tokenize`, of text that goes on where other text ended."""
    body: dict[str, object] = {"prompt": text, "add_special_tokens": False}
    if "model" in request.fields:
        body["model"] = request.fields["model"]
    return msgspec.json.encode(body)


def rest_request(request: InferenceRequest, prompt: list[int], stream_log: StreamLog) -> InferenceRequest:
    """The job of going on after the tokens in `stream_log`."""
    fields = {name: request.fields[name] for name in _CARRIED if name in request.fields}
    if request.path == COMPLETIONS_PATH:
        fields |= {name: request.fields[name] for name in _LOGPROBS if name in request.fields}
    made = len(stream_log.ids)
    left = None if request.max_tokens is None else max(request.max_tokens - made, 0)
    fields["prompt"] = Raw(msgspec.json.encode([*prompt, *stream_log.ids]))
    fields["max_tokens"] = Raw(msgspec.json.encode(left))
    least = _number(request.fields.get("min_tokens"))
    if least > made:
        fields["min_tokens"] = Raw(msgspec.json.encode(int(least) - made))
    fields["stream"] = _TRUE
    fields["stream_options"] = request.fields.get("stream_options", _USAGE)
    fields[_IDS] = _TRUE
    return InferenceRequest(
        path=COMPLETIONS_PATH, fields=fields, stream=True, whole=False, max_tokens=left, adapter=request.adapter
    )


def greedy(request: InferenceRequest) -> bool:
    """The same tokens come again. What penalties count would be lost between two workers."""
    temperature = request.fields.get("temperature")
    if temperature is None or bytes(temperature) == b"null" or _number(temperature) >= _GREEDY_BELOW:
        return False
    return not (_number(request.fields.get("frequency_penalty")) or _number(request.fields.get("presence_penalty")))


def longest_stop(fields: dict[str, Raw]) -> int:
    """Characters of the longest stop string; 0: there is none."""
    try:
        stop = msgspec.json.decode(fields["stop"])
    except (KeyError, msgspec.DecodeError):
        return 0
    strings = stop if isinstance(stop, list) else [stop]
    return max((len(each) for each in strings if isinstance(each, str)), default=0)


def _says(fields: dict[str, Raw], name: str) -> bool:
    value = fields.get(name)
    if value is None or bytes(value) in _NOTHING:
        return False
    return not (name == "response_format" and _type_of(value) == "text")


class _Format(msgspec.Struct):
    type: str = ""


def _type_of(value: Raw) -> str:
    try:
        return msgspec.json.decode(value, type=_Format).type
    except msgspec.DecodeError:
        return ""  # for the engine to refuse


def _number(value: Raw | None) -> float:
    if value is None:
        return 0.0
    try:
        read = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return 0.0
    return float(read) if isinstance(read, int | float) else 0.0


def _has_media(request: InferenceRequest) -> bool:
    try:
        messages = msgspec.json.decode(request.fields["messages"])
    except (KeyError, msgspec.DecodeError):
        return True
    parts = [part for message in messages if isinstance(message, dict) for part in _parts(message.get("content"))]
    return any(not isinstance(part, str) and (not isinstance(part, dict) or "text" not in part) for part in parts)


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else []
