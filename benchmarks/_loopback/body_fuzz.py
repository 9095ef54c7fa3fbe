"""Bodies of requests that are wrong in all fields of vLLM's own request classes, and what those classes say of them.

Importing it imports vLLM: half a minute, no engine.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.api_formats.inference_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    InferenceRequest,
    ServedModel,
    ask_for_usage,
)
from fulcrum.gateway.dispatch.resume import follow
from fulcrum.gateway.dispatch.stream_log import StreamLogBudget
from fulcrum.gateway.errors import RequestError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
    from vllm.sampling_params import BeamSearchParams, SamplingParams

CLASSES: Final = {
    CHAT_PATH: ChatCompletionRequest,
    COMPLETIONS_PATH: CompletionRequest,
    MESSAGES_PATH: AnthropicMessagesRequest,
    RESPONSES_PATH: ResponsesRequest,
}
MODEL_TOKENS: Final = 4096
PROMPT_TOKENS: Final = 7
SERVED: Final = ServedModel(name="m", max_model_len=MODEL_TOKENS)
KV: Final = Raw(b'{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1]],"remote_host":"h"}')
LONGEST_SHOWN: Final = 300
"""Characters of a body that are printed."""
USUAL_TOKENS: Final = 16
"""`max_tokens` of most bodies at random, and the most in the sample: it is for engines, on any machine."""

_ANYTHING: Final = (
    None, True, False, 0, 1, 2, 5, 16, 17, 600, MODEL_TOKENS, MODEL_TOKENS + 1, -1, -7, 1.0, 1.5, 1e3, 2**31, 2**63,
    2**64, "", "x", "5", "true", "null", [], [1], ["x"], [None], {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip
_TENSOR: Final = {"type": "image_embeds", "image_embeds": "AAAA"}
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_FITTING: Final[dict[str, tuple[Any, ...]]] = {
    "messages": (
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": ["[a]", "b"]}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "[hi]"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"image_url": "data:image/png;base64,AA=="}]}],
        [{"role": "user", "content": [_TENSOR]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}],
    ),
    "prompt": ("hi", [1, 2, 3], [[1, 2]], ["a", "b"], "", " ", [[]], [""]),
    "model": ("m", None, "other"),
    "stream_options": (
        {"include_usage": True}, {"include_usage": False, "continuous_usage_stats": True}, {}, None, {"x": 1},
    ),
    "response_format": (
        {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "text"}},
        {"type": "json_schema"}, {"type": "structural_tag"},
    ),
    "structured_outputs": ({"json": {"type": "object"}}, {"regex": "a+"}, {"regex": "a", "choice": ["a"]}, {}),
    "tools": ([_TOOL], []),
    "tool_choice": ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}),
    "stop": ("x", ["x", "y"], [""], ["x"] * 40),
    "logit_bias": ({"5": 1.0}, {"x": 1}, {}),
    "vllm_xargs": ({"kv_transfer_params": ""}, {"a": 1}, {"ec_transfer_params": ["x"]}, {}, None),
    "kv_transfer_params": ({"do_remote_prefill": True, "remote_host": "h"}, {}, None),
    "ec_transfer_params": ({"a": 1}, {}, None),
    "prompt_embeds": ("AAAA", ["AAAA"], None),
    "reasoning_effort": ("low", "max", "odd"),
    "truncation_side": ("left", "right", "middle"),
    "mm_payload": ("tensors", "none", "x"),
    "cache_salt": ("salt", "a/b", ""),
    "repetition_detection": ({"max_pattern_size": 3, "min_count": 2}, {"max_pattern_size": 3}, {}),
    "documents": ([{"title": "t", "text": "x"}],),
    "chat_template_kwargs": ({"a": 1},),
    "media_io_kwargs": ({"image": {"a": 1}},),
    "mm_processor_kwargs": ({"a": 1},),
    "max_tokens": (1, 5, 17, 600, 5.0, MODEL_TOKENS, MODEL_TOKENS + 1, 0, None),
    "max_completion_tokens": (1, 5, 600, MODEL_TOKENS, MODEL_TOKENS + 1, 0, None),
    "min_tokens": (0, 1, 2, 16, 4000, 1.0),
    "n": (1, 2, 1.0),
    "stream": (True, True, False, None),
    "echo": (False, False, True),
    "return_token_ids": (True, False, None),
    "use_beam_search": (False, False, True),
    "prompt_logprobs": (None, 0, 1, -1),
    "logprobs": (True, 1, 0, None),
    "stop_token_ids": ([1, 2], []),
    "allowed_token_ids": ([1, 2], []),
    "logprob_token_ids": ([1, 2], []),
    "bad_words": (["x"], [""]),
    "input": (
        "hi", [{"role": "user", "content": "hi"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x"}]}],
    ),
    "max_output_tokens": (1, 5, 17, 600, 5.0, MODEL_TOKENS, MODEL_TOKENS + 1, 0, None),
    "truncation": ("auto", "disabled", None),
    "store": (True, False, None),
    "background": (False, None, True),
    "thinking": (
        {"type": "enabled", "budget_tokens": 1024}, {"type": "enabled", "budget_tokens": MODEL_TOKENS},
        {"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": "1024"},
    ),
    "system": ("s", [{"type": "text", "text": "s"}]),
    "stop_sequences": (["x"], []),
    "metadata": ({"user_id": "x"}, {}),
    "text": ({"format": {"type": "json_object"}}, {"format": {"type": "text"}}),
    "reasoning": ({"effort": "low"}, {}),
    "include": (["message.output_text.logprobs"], []),
    "output_config": ({"effort": "low"}, {"format": {"type": "json_schema", "schema": {"type": "object"}}}),
}  # fmt: skip
_PROBLEM_FIELDS: Final = (
    "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "n", "echo", "return_token_ids",
    "prompt_logprobs", "logprobs", "use_beam_search", "max_output_tokens", "truncation", "thinking",
)  # fmt: skip
"""Fields that the legs differ in, and those that are judged together with one of them."""


_COMPLETION: Final[dict[str, Any]] = {"model": "m", "prompt": "hi"}
_CHAT: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_MESSAGE: Final[dict[str, Any]] = {**_CHAT, "max_tokens": 16}
_RESPONSE: Final[dict[str, Any]] = {"model": "m", "input": "hi"}
_BODIES: Final = {
    CHAT_PATH: _CHAT, COMPLETIONS_PATH: _COMPLETION, MESSAGES_PATH: _MESSAGE, RESPONSES_PATH: _RESPONSE
}  # fmt: skip
"""A body of each route that fits."""
_PROBLEMS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": {"include_usage": 7}},
    {"stream": False, "stream_options": {}}, {"stream": None, "stream_options": {"x": 1}},
    {"max_tokens": MODEL_TOKENS + 1}, {"max_tokens": MODEL_TOKENS}, {"max_tokens": 0}, {"max_tokens": -1},
    {"max_tokens": None}, {"max_tokens": "5"}, {"max_tokens": 5.5}, {"max_tokens": True},
    {"max_completion_tokens": 0}, {"max_completion_tokens": MODEL_TOKENS + 1}, {"max_completion_tokens": "x"},
    {"max_tokens": MODEL_TOKENS + 1, "max_completion_tokens": 5}, {"max_tokens": 0, "max_completion_tokens": 5},
    {"min_tokens": None}, {"min_tokens": -1}, {"min_tokens": 17}, {"min_tokens": 5, "max_tokens": 4},
    {"min_tokens": MODEL_TOKENS - 1, "max_tokens": MODEL_TOKENS}, {"min_tokens": MODEL_TOKENS}, {"min_tokens": 2.0},
    {"echo": True, "max_tokens": 0}, {"echo": True, "max_tokens": 0, "min_tokens": 1}, {"echo": None},
    {"return_token_ids": 3}, {"return_token_ids": False, "stream": True}, {"prompt_logprobs": 1, "stream": True},
    {"n": 0}, {"n": None}, {"n": 2, "temperature": 0}, {"use_beam_search": True, "stream": True}, {"suffix": "x"},
    {"vllm_xargs": {"a": 1}}, {"prompt_embeds": "AAAA"}, {"logprob_token_ids": [1], "logprobs": 1},
)  # fmt: skip
"""What has been judged differently by the two legs, or could be."""


@dataclass
class Tally:
    """What came of the bodies."""

    served: ServedModel = SERVED
    """The model that is asked for."""
    bodies: int = 0
    named: int = 0
    """Of these, bodies that were not made at random."""
    accepted: int = 0
    two_legs: int = 0
    refused_by_engine: int = 0
    disagreements: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    """Bodies with which a client sets an engine's own arguments."""
    mutated: Counter[str] = field(default_factory=Counter)
    """Mutations by route and field."""
    sample: list[tuple[str, str]] = field(default_factory=list)
    """Path and body of those that were accepted, by vLLM's classes too, and whose answers are short."""


@dataclass(frozen=True)
class _Model:
    """What `build_tok_params` reads of an engine's configuration."""

    max_model_len: int = MODEL_TOKENS


def fields_of(path: str) -> list[str]:
    """Names of the fields that vLLM reads on a route."""
    return sorted(CLASSES[path].model_fields)


def verdict(path: str, body: bytes) -> tuple[str, SamplingParams | BeamSearchParams | None]:
    """What an engine says of `body` before it schedules it: empty and the parameters, or why it is refused."""
    fields = json.loads(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            request = CLASSES[path].model_validate(fields)
            if path == MESSAGES_PATH:
                request = AnthropicServingMessages.to_chat_completion_request(request)
            request.build_tok_params(_Model())
            if path == RESPONSES_PATH:
                cut = -1 if request.truncation != "disabled" else None
                max_tokens = get_max_tokens(
                    MODEL_TOKENS, request.max_output_tokens, PROMPT_TOKENS, {}, None, truncate_prompt_tokens=cut
                )
                return "", request.to_sampling_params(max_tokens, {})
            asked = request.max_tokens
            if path in (CHAT_PATH, MESSAGES_PATH) and request.max_completion_tokens is not None:
                asked = request.max_completion_tokens
            cut = request.truncate_prompt_tokens
            max_tokens = get_max_tokens(MODEL_TOKENS, asked, PROMPT_TOKENS, {}, None, truncate_prompt_tokens=cut)
            if request.use_beam_search:
                return "", request.to_beam_search_params(max_tokens, {})
            return "", request.to_sampling_params(max_tokens, {})
    except Exception as error:  # noqa: BLE001  whatever it is, the client gets an error for it
        return f"{type(error).__name__}: {error}", None


def legs(request: InferenceRequest) -> list[bytes]:
    """Bodies that the engines get, in the form in which they are sent."""
    if request.stream and request.path in (CHAT_PATH, COMPLETIONS_PATH):
        ask_for_usage(request)
        follow(request, StreamLogBudget())
    if request.whole:
        return [request.whole_body()]
    return [request.prefill_body(), request.decode_body(KV)]


def try_body(path: str, body: bytes, tally: Tally) -> None:
    """Send one body through the gateway's reader, and what it makes of it through vLLM's classes."""
    tally.bodies += 1
    try:
        request = read_request(path, body, tally.served)
    except RequestError:
        return
    tally.accepted += 1
    shown = body.decode()[:LONGEST_SHOWN]
    sent = legs(request)
    verdicts = [verdict(path, each) for each in sent]
    for leg, (why, params) in zip(sent, verdicts, strict=True):
        given = getattr(params, "extra_args", None) or {}
        own = {"kv_transfer_params"} if len(sent) > 1 else set()
        if given.keys() - own or (given and json.loads(leg).get("kv_transfer_params") != given["kv_transfer_params"]):
            tally.reached.append(f"{path} {shown} -> {given}")
        tally.refused_by_engine += bool(why)
    if len(sent) > 1:
        tally.two_legs += 1
        (prefill, _), (decode, _) = verdicts
        if bool(prefill) != bool(decode):
            tally.disagreements.append(f"{path} {shown} prefill: {prefill or 'ok'} decode: {decode or 'ok'}")
    if all(params is not None and params.max_tokens <= USUAL_TOKENS for _, params in verdicts):
        tally.sample.append((path, body.decode()))


def random_body(rng: random.Random, path: str, tally: Tally) -> bytes:
    """A body that fits, with one to three fields mutated."""
    names = fields_of(path)
    body = {**_BODIES[path], "model": tally.served.name}
    problems = [name for name in _PROBLEM_FIELDS if path in (CHAT_PATH, COMPLETIONS_PATH) or name in names]
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(problems if rng.random() < 0.4 else names)
        known = _FITTING.get(name)
        body[name] = rng.choice(known if known is not None and rng.random() < 0.85 else _ANYTHING)
        tally.mutated[f"{path} {name}"] += 1
    if rng.random() < 0.6:
        body.setdefault("stream", True)
    if rng.random() < 0.8:
        body.setdefault("max_output_tokens" if path == RESPONSES_PATH else "max_tokens", USUAL_TOKENS)
    return written(rng, body)


def written(rng: random.Random, value: Any) -> bytes:
    """JSON in which keys are escaped, or stand there twice, now and then."""

    def key(name: str) -> str:
        if rng.random() < 0.2:
            at = rng.randrange(len(name)) if name else 0
            return json.dumps(name[:at])[:-1] + "".join(f"\\u{ord(each):04x}" for each in name[at:]) + '"'
        return json.dumps(name)

    def write(each: Any) -> str:
        if isinstance(each, dict):
            items = [f"{key(name)}: {write(inside)}" for name, inside in each.items()]
            if items and rng.random() < 0.05:
                items.insert(0, f"{key(next(iter(each)))}: {write(rng.choice(_ANYTHING))}")
            return "{" + ", ".join(items) + "}"
        if isinstance(each, list):
            return "[" + ", ".join(map(write, each)) + "]"
        return json.dumps(each)

    return write(value).encode()


def run(bodies: int, seed: int, served: ServedModel = SERVED) -> Tally:
    """Try random bodies on all routes."""
    rng = random.Random(seed)
    tally = Tally(served=served)
    for path, body in _BODIES.items():
        for problem in _PROBLEMS:
            try_body(path, json.dumps(body | {"model": served.name} | problem).encode(), tally)
            tally.named += 1
    for number in range(bodies):
        path = list(_BODIES)[number % len(_BODIES)]
        try_body(path, random_body(rng, path, tally), tally)
    return tally
