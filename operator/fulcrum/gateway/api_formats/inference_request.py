"""One accepted request as the engines get it (REFERENCES, section 2), and what is read of their answers. Values only.

Fields stay raw JSON: the prompt is never decoded, only carried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.api.names import TTFT_PARAM
from fulcrum.gateway.api_formats.media import inspect
from fulcrum.gateway.api_formats.media_blocks import inspect_input, inspect_messages

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
MESSAGES_PATH: Final = "/v1/messages"
"""Anthropic's API."""
RESPONSES_PATH: Final = "/v1/responses"
INFERENCE_PATHS: Final = (COMPLETIONS_PATH, CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH)
"""What goes through admission and legs."""
COUNT_TOKENS_PATH: Final = "/v1/messages/count_tokens"
TOKENIZE_PATH: Final = "/tokenize"
DETOKENIZE_PATH: Final = "/detokenize"
TOKENIZING_PATHS: Final = (TOKENIZE_PATH, DETOKENIZE_PATH, COUNT_TOKENS_PATH)
"""What any one worker answers without generating."""
EMBEDDINGS_PATH: Final = "/v1/embeddings"
SCORE_PATH: Final = "/v1/score"
RERANK_PATH: Final = "/v1/rerank"
POOLING_PATHS: Final = (EMBEDDINGS_PATH, SCORE_PATH, RERANK_PATH)
"""What a pooling model answers, through admission and in one leg."""
ENGINE_PATHS: Final = {SCORE_PATH: "/score"}
"""Where engines have a route that is not asked there: at `/v1/score` vLLM (0.32) logs a warning for each request."""
POST_PATHS: Final = (*INFERENCE_PATHS, *TOKENIZING_PATHS, *POOLING_PATHS)
TTFT_HEADER: Final = "x-llm-d-slo-ttft-ms"
TPOT_HEADER: Final = "x-llm-d-slo-tpot-ms"

_PROMPT: Final = {
    CHAT_PATH: "messages",
    COMPLETIONS_PATH: "prompt",
    MESSAGES_PATH: "messages",
    RESPONSES_PATH: "input",
    EMBEDDINGS_PATH: "input",
    SCORE_PATH: "documents",
    RERANK_PATH: "documents",
}
"""The field of each route with the prompt."""
_BESIDE: Final = {
    CHAT_PATH: ("tools",),
    COMPLETIONS_PATH: ("tools",),
    MESSAGES_PATH: ("tools", "system"),
    RESPONSES_PATH: ("tools", "instructions"),
    EMBEDDINGS_PATH: (),
    SCORE_PATH: ("queries",),
    RERANK_PATH: ("query",),
}
"""Fields of each route that become a part of the prompt besides."""
_MOST_TOKENS: Final = {RESPONSES_PATH: "max_output_tokens"}
"""The field with the most output tokens, where it is not `max_tokens`."""
_INSPECTORS: Final = {CHAT_PATH: inspect, MESSAGES_PATH: inspect_messages, RESPONSES_PATH: inspect_input}
"""Looks for media, where prompts can have some."""

_PREFILL_PARAMS: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_TTFT_PARAM: Final = TTFT_PARAM.encode()
_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_EMPTY: Final = Raw(b"")

_LONGEST_INTERVAL: Final = 1 << 20
_ASKED_USAGE: Final = Raw(b'{"include_usage":true}')

_encoder: Final = msgspec.json.Encoder()


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What requests are judged by."""

    name: str
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; None: not known here."""
    adapters: Container[str] = ()
    """Names of LoRA adapters that are served beside the model."""
    media_urls: bool = False
    """As `InferenceRequest.media_urls`."""
    pools: bool = False
    """It makes embeddings and scores, and no tokens."""

    @property
    def paths(self) -> tuple[str, ...]:
        """What it is asked at."""
        if self.pools:
            return (*POOLING_PATHS, TOKENIZE_PATH, DETOKENIZE_PATH)
        return (*INFERENCE_PATHS, *TOKENIZING_PATHS)


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request."""

    path: str
    fields: dict[str, Raw]
    """The client's body, without connector fields."""
    stream: bool
    whole: bool
    """The two-leg protocol cannot carry it: prefill and decode on one worker."""
    max_tokens: int | None = None
    """Most output tokens of each sequence; None: as many as the model's length leaves."""
    adapter: str = ""
    """The LoRA adapter that it asks for; empty: the model itself."""
    pools: bool = False
    """It asks a pooling model: its answer comes with its prompt, and counts as one token."""
    media_urls: bool = False
    """Engines fetch media of the domains that they know; without it every URL but `data:` is refused."""
    media: tuple[int, int] | None = None
    """What `measure_media` has found."""

    @property
    def prompt(self) -> Raw:
        """What the prompt is made of, undecoded; empty for a prompt that came as embeddings."""
        return self.fields.get(_PROMPT[self.path]) or _EMPTY

    def measure_media(self) -> tuple[int, int]:
        """Images and recordings in it, and their bytes; looked for once. Raises RequestError for what is refused."""
        if self.media is None:
            inspector = _INSPECTORS.get(self.path)
            found = (0, 0) if inspector is None else inspector(bytes(self.prompt), urls=self.media_urls)
            msgspec.structs.force_setattr(self, "media", found)
            return found
        return self.media

    @property
    def stream_interval(self) -> int:
        """Most tokens that the engine gathers before it sends them as one event."""
        value = self.fields.get("stream_interval")
        try:
            return 1 if value is None else int(min(max(msgspec.json.decode(value, type=float), 1), _LONGEST_INTERVAL))
        except msgspec.DecodeError:
            return 1  # for the engine to refuse

    @property
    def beside_bytes(self) -> int:
        """Bytes of what becomes a part of the prompt besides: tools, and instructions where they stand apart."""
        fields = self.fields
        return sum(len(bytes(fields[name])) for name in _BESIDE[self.path] if name in fields)

    @property
    def engine_headers(self) -> bytes:
        """Header lines for the engines, each ended by CRLF: Anthropic's API has no field for a priority."""
        priority = self.fields.get("priority") if self.path == MESSAGES_PATH else None
        return b"" if priority is None else b"x-vllm-priority: %b\r\n" % bytes(priority)

    def whole_body(self, ttft_seconds: float | None = None) -> bytes:
        """Body of a request in one leg; with `ttft_seconds` the engine restores a prefix within that time."""
        if ttft_seconds is None:
            return _encoder.encode(self.fields)
        params = Raw(b'{"%b":%.3f}' % (_TTFT_PARAM, ttft_seconds))
        return _encoder.encode({**self.fields, "kv_transfer_params": params})

    def prefill_body(self, ttft_seconds: float | None = None) -> bytes:
        """Body of the prefill leg: one token, not streamed, KV kept for a peer; `ttft_seconds` as in `whole_body`."""
        fields = self.fields.copy()
        fields[_MOST_TOKENS.get(self.path, "max_tokens")] = _ONE
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = _ONE
        if self.stream:
            fields["stream"] = _FALSE
        fields.pop("stream_options", None)
        fields.pop("min_tokens", None)
        fields.pop("return_token_ids", None)  # not read in this answer
        params = _PREFILL_PARAMS
        if ttft_seconds is not None:
            params = Raw(b'%b,"%b":%.3f}' % (bytes(params)[:-1], _TTFT_PARAM, ttft_seconds))
        fields["kv_transfer_params"] = params
        return _encoder.encode(fields)

    def decode_body(self, kv_transfer_params: Raw | None) -> bytes:
        """Body of the decode leg; without parameters the decode worker computes the prompt itself."""
        if kv_transfer_params is None:
            return self.whole_body()
        return _encoder.encode({**self.fields, "kv_transfer_params": kv_transfer_params})


def cap_output(request: InferenceRequest, most_tokens: int) -> InferenceRequest:
    """The request with at most so many output tokens of each sequence.

    It stays as it is where it asks for no more, or has a budget for thinking, which engines compare with that number.
    """
    if request.max_tokens is not None and request.max_tokens <= most_tokens:
        return request
    if b'"budget_tokens"' in bytes(request.fields.get("thinking", b"")):
        return request
    most = Raw(b"%d" % most_tokens)
    fields = {**request.fields, _MOST_TOKENS.get(request.path, "max_tokens"): most}
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = most
    if "min_tokens" in fields:
        with contextlib.suppress(msgspec.DecodeError):  # for the engine to refuse
            fields["min_tokens"] = Raw(b"%d" % min(msgspec.json.decode(fields["min_tokens"], type=int), most_tokens))
    return msgspec.structs.replace(request, fields=fields, max_tokens=most_tokens)


class StreamOptions(msgspec.Struct):
    """What a client wants to know besides the tokens of its stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


def wants_every_usage(request: InferenceRequest) -> bool:
    """Whether each event is to say how many tokens there are so far."""
    options = request.fields.get("stream_options")
    if options is None or bytes(options) == b"null":
        return False
    return msgspec.json.decode(options, type=StreamOptions).continuous_usage_stats is True


def ask_for_usage(request: InferenceRequest) -> bool:
    """Ask the engine to close the stream with its usage; True: the client did not ask, and must not see it.

    An event may hold any number of tokens (`stream_interval`, speculative decoding): only the engine can count them.
    """
    options = request.fields.get("stream_options")
    if options is not None and bytes(options) != b"null":
        try:
            if msgspec.json.decode(options, type=StreamOptions).include_usage:
                return False
        except msgspec.DecodeError:
            return False  # for the engine to refuse
    request.fields["stream_options"] = _ASKED_USAGE
    return True


class LargeFields(msgspec.Struct, frozen=True):
    """The fields of a request that may be large, each undecoded; what else it has is skipped."""

    messages: Raw = _EMPTY
    prompt: Raw = _EMPTY
    prediction: Raw = _EMPTY
    tools: Raw = _EMPTY
    functions: Raw = _EMPTY
    documents: Raw = _EMPTY
    response_format: Raw = _EMPTY
    structured_outputs: Raw = _EMPTY
    guided_json: Raw = _EMPTY
    guided_grammar: Raw = _EMPTY
    logit_bias: Raw = _EMPTY
    chat_template: Raw = _EMPTY
    chat_template_kwargs: Raw = _EMPTY
    mm_processor_kwargs: Raw = _EMPTY
    metadata: Raw = _EMPTY
    suffix: Raw = _EMPTY
    input: Raw = _EMPTY
    system: Raw = _EMPTY
    instructions: Raw = _EMPTY
    text: Raw = _EMPTY
    output_config: Raw = _EMPTY
    stop: Raw = _EMPTY
    bad_words: Raw = _EMPTY
    query: Raw = _EMPTY
    queries: Raw = _EMPTY
    text_1: Raw = _EMPTY
    text_2: Raw = _EMPTY
    data_1: Raw = _EMPTY
    data_2: Raw = _EMPTY
    items: Raw = _EMPTY


class Usage(msgspec.Struct, frozen=True):
    """Token counts that an engine reports."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    """As `/v1/responses` and `/v1/messages` call those of the prompt; the latter without those that were cached."""
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    @property
    def read_tokens(self) -> int | None:
        """Tokens of the prompt, whatever the API calls them."""
        if self.input_tokens is None:
            return self.prompt_tokens
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)

    @property
    def made_tokens(self) -> int | None:
        """Tokens of the answer, whatever the API calls them."""
        return self.completion_tokens if self.output_tokens is None else self.output_tokens


class MessageEnd(msgspec.Struct, frozen=True):
    """How a message of Anthropic's API ended. One that its engine gave up has no reason."""

    type: str = ""
    stop_reason: str | None = None


class AnswerChoice(msgspec.Struct, frozen=True):
    """One sequence of an answer that comes as one."""

    finish_reason: str | None = None


class EngineAnswer(msgspec.Struct, frozen=True):
    """The part of an engine's JSON answer that the gateway reads."""

    choices: tuple[AnswerChoice, ...] = ()
    usage: Usage | None = None
    kv_transfer_params: Raw = Raw(b"null")

    @property
    def usable_kv(self) -> Raw | None:
        """Parameters for the decode leg; None when the engine gave none."""
        return self.kv_transfer_params if bytes(self.kv_transfer_params).startswith(b"{") else None
