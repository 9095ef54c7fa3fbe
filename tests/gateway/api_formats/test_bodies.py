"""What the gateway reads of a body, and the bodies of the two legs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.conftest import SERVED
from tests.machine import cost_ratio

from fulcrum.gateway.api_formats import bodies
from fulcrum.gateway.api_formats.bodies import read_answer, read_request
from fulcrum.gateway.api_formats.error_object import error_object
from fulcrum.gateway.api_formats.inference_request import CHAT_PATH, COMPLETIONS_PATH, InferenceRequest
from fulcrum.gateway.errors import RequestError

KV = {"remote_engine_id": "e", "remote_block_ids": [[1, 2]], "do_remote_prefill": True}


def request(body: dict[str, Any], path: str = COMPLETIONS_PATH) -> InferenceRequest:
    return read_request(path, json.dumps(body).encode(), SERVED)


def test_prefill_leg_is_one_token_and_not_streamed() -> None:
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hé \u2028 \U0001f600"}], "stream": True,
        "stream_options": {"include_usage": True}, "min_tokens": 5, "max_tokens": 50, "max_completion_tokens": 60,
        "seed": 1, "kv_transfer_params": None,
    }  # fmt: skip
    prefill = json.loads(request(body, CHAT_PATH).prefill_body())
    assert prefill == {
        "model": "m", "messages": body["messages"], "stream": False, "max_tokens": 1, "max_completion_tokens": 1,
        "seed": 1,
        "kv_transfer_params": {
            "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
            "remote_host": None, "remote_port": None,
        },
    }  # fmt: skip


def test_decode_leg_is_the_clients_body_and_exactly_what_prefill_returned() -> None:
    body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": 1, "stream_options": {"include_usage": True}}
    answer = read_answer(json.dumps({"id": "1", "choices": [{}], "kv_transfer_params": KV}).encode())
    assert answer is not None
    assert json.loads(request(body).decode_body(answer.usable_kv)) == {**body, "kv_transfer_params": KV}
    assert json.loads(request(body).decode_body(None)) == body


def test_a_promise_is_the_only_thing_that_changes_the_body() -> None:
    made = request({"model": "m", "prompt": "x", "max_tokens": 5})
    whole, prefill = json.loads(made.whole_body(1.23456)), json.loads(made.prefill_body(0.0))
    assert whole.pop("kv_transfer_params") == {"ttft_seconds": 1.235}
    assert whole == json.loads(made.whole_body())
    assert prefill["kv_transfer_params"].pop("ttft_seconds") == 0.0
    assert prefill == json.loads(made.prefill_body())


@pytest.mark.parametrize(
    ("answer", "usable"),
    [(b'{"kv_transfer_params":null}', False), (b"{}", False), (b'{"kv_transfer_params":{"a":1}}', True)],
)
def test_usable_kv(answer: bytes, usable: bool) -> None:
    read = read_answer(answer)
    assert read is not None
    assert (read.usable_kv is not None) is usable


def test_an_answer_that_is_not_json_is_not_usable() -> None:
    assert read_answer(b"<html>") is None


@pytest.mark.parametrize(
    ("extra", "whole"),
    [
        ({}, False),
        ({"n": 1, "best_of": 1, "echo": False, "logprobs": 3, "use_beam_search": False, "suffix": None}, False),
        ({"n": 2}, True),
        ({"best_of": 2}, False),
        ({"echo": True}, True),
        ({"prompt_logprobs": 0}, True),
        ({"use_beam_search": True}, True),
        ({"truncate_prompt_tokens": -1}, True),
        ({"prompt": ["a"]}, False),
        ({"prompt": ["a", "b"]}, True),
        ({"prompt": [1, 2]}, False),
        ({"prompt": [[1, 2]]}, False),
        ({"prompt": [[1], [2]]}, True),
    ],
)
def test_what_two_legs_cannot_carry_goes_in_one(extra: dict[str, Any], whole: bool) -> None:
    assert request({"model": "m", "prompt": "x", **extra}).whole is whole


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        (COMPLETIONS_PATH, b"", 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b"[]", 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b'{"prompt":', 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b'{"prompt":"\xff"}', 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b'{"prompt":"\\ud800"}', 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b'{"prompt":' + b"[" * 200_000, 400, None, "invalid_json"),
        (COMPLETIONS_PATH, b'{"model":"m"}', 400, "prompt", "missing_required_parameter"),
        (COMPLETIONS_PATH, b'{"prompt":null}', 400, "prompt", "missing_required_parameter"),
        (COMPLETIONS_PATH, b'{"prompt":[]}', 400, "prompt", None),
        (COMPLETIONS_PATH, b'{"prompt":7}', 400, "prompt", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","model":"other"}', 404, "model", "model_not_found"),
        (COMPLETIONS_PATH, b'{"prompt":"x","model":3}', 400, "model", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","stream":"yes"}', 400, "stream", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","max_tokens":"5"}', 400, "max_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","max_tokens":-5}', 400, "max_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","n":1.5}', 400, "n", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","kv_transfer_params":{}}', 400, "kv_transfer_params", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","kv_tr\\u0061nsfer_params":{"a":1}}', 400, "kv_transfer_params", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","ec_transfer_params":{"a":1}}', 400, "ec_transfer_params", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","vllm_xargs":{"kv_transfer_params":"x"}}', 400, "vllm_xargs", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","vllm_xargs":{"kv_\\u0074ransfer_params":""}}', 400, "vllm_xargs", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","vllm_\\u0078args":{"anything":1}}', 400, "vllm_xargs", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","vllm_xargs":"s"}', 400, "vllm_xargs", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","prompt_embeds":"x"}', 400, "prompt_embeds", None),
        (COMPLETIONS_PATH, b'{"prompt":"","prompt_embed\\u0073":["x"]}', 400, "prompt_embeds", None),
        (COMPLETIONS_PATH, b'{"prompt":""}', 400, "prompt", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","max_tokens":0}', 400, "max_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","max_tokens":16777217}', 400, "max_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","max_tokens":1e300}', 400, "max_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","min_tokens":null}', 400, "min_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","min_tokens":17}', 400, "min_tokens", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","stream_options":{"include_usage":true}}', 400, "stream_options", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","stream":true,"stream_options":7}', 400, "stream_options", None),
        (COMPLETIONS_PATH, b'{"prompt":"x","return_token_ids":3}', 400, "return_token_ids", None),
        (CHAT_PATH, b'{"model":"m"}', 400, "messages", "missing_required_parameter"),
        (CHAT_PATH, b'{"messages":"hi"}', 400, "messages", None),
        (CHAT_PATH, b'{"messages":[ ]}', 400, "messages", None),
    ],
)  # fmt: skip
def test_refused(path: str, body: bytes, status: int, param: str | None, code: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read_request(path, body, SERVED)
    assert (refused.value.status, refused.value.param, refused.value.code) == (status, param, code)
    error = json.loads(error_object(refused.value, in_stream=False))["error"]
    assert set(error) == {"message", "type", "param", "code"}


def attempt(path: str, body: bytes) -> InferenceRequest | RequestError:
    try:
        return read_request(path, body, SERVED)
    except RequestError as refused:
        return refused


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from(
    ["prompt", "messages", "model", "stream", "n", "max_tokens", "echo", "kv_transfer_params", "x", "vllm_xargs"]
)


@given(st.dictionaries(names, json_values, max_size=6), st.sampled_from([CHAT_PATH, COMPLETIONS_PATH]))
@example({"prompt": [None], "vllm_xargs": None}, COMPLETIONS_PATH)
@example({"prompt": "x", "vllm_xargs": {}}, COMPLETIONS_PATH)
def test_any_object_is_a_job_or_a_4xx_and_legs_keep_the_rest(body: dict[str, Any], path: str) -> None:
    read = attempt(path, msgspec.json.encode(body))
    if isinstance(read, RequestError):
        assert 400 <= read.status < 500
        return
    body.pop("kv_transfer_params", None)
    if not body.get("vllm_xargs"):
        body.pop("vllm_xargs", None)  # an empty one is left out
    assert json.loads(read.whole_body()) == body
    changed = {"max_tokens", "stream", "kv_transfer_params"}
    prefill = json.loads(read.prefill_body())
    assert {key: value for key, value in prefill.items() if key not in changed} == {
        key: value for key, value in body.items() if key not in changed
    }


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_4xx(body: bytes) -> None:
    read = attempt(CHAT_PATH, body)
    assert isinstance(read, InferenceRequest) or 400 <= read.status < 500


def test_tools_of_a_chat_are_counted() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}
    assert read_request(CHAT_PATH, msgspec.json.encode(chat), SERVED).beside_bytes == len(b'[{"type":"function"}]')
    assert read_request(CHAT_PATH, msgspec.json.encode({"messages": chat["messages"]}), SERVED).beside_bytes == 0


@pytest.mark.parametrize(
    ("written", "read"),
    [("3", 3), ("3.0", 3), ("1e3", 1000), ("16777216", 1 << 24)],
)
def test_counts_are_read_as_the_engine_reads_them(written: str, read: int) -> None:
    request = read_request(COMPLETIONS_PATH, f'{{"prompt":"x","max_tokens":{written}}}'.encode(), SERVED)
    assert request.max_tokens == read
    assert bytes(request.fields["max_tokens"]) == written.encode()


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({f"f{number}": 1 for number in range(600_000)} | {"prompt": "a"}),
        '{"prompt":' + '"a","prompt":' * 600_000 + '"a"}',
    ],
    ids=["many", "repeated"],
)
def test_more_fields_than_any_api_has_are_refused_before_they_are_read(text: str) -> None:
    body = text.encode()

    def refuse() -> None:
        with pytest.raises(RequestError, match="more than 1024 fields"):
            read_request(COMPLETIONS_PATH, body, SERVED)

    assert cost_ratio(lambda: json.loads(body), refuse, rounds=3) < 3


def test_colons_in_texts_and_tools_are_no_fields() -> None:
    messages = [{"role": "user", "content": "a: b"}] * 2000
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "string"}}}}] * 500
    made = request({"messages": messages, "tools": tools, "stop": ["a:"] * 2000, "seed": 1}, CHAT_PATH)
    assert len(made.fields) == 4


@pytest.mark.parametrize("name", ["prediction", "messages", "metadata", "a field of tomorrow"])
def test_colons_in_the_value_of_any_field_are_no_fields(name: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], name: {"type": "content", "content": "a:" * 2000}}
    if name == "messages":
        body[name] = [{"role": "user", "content": "a:" * 2000}]
    assert len(request(body, CHAT_PATH).fields) == len(body)


@pytest.mark.parametrize(
    ("prompt", "whole"), [([[1, 2]], False), (["a"], False), ([[1], [2]], True), (["a", "b"], True)]
)
def test_a_batch_is_told_by_its_second_prompt(prompt: list[Any], whole: bool) -> None:
    text = json.dumps({"prompt": prompt}).encode()
    assert read_request(COMPLETIONS_PATH, text, SERVED).whole is whole


def test_a_batch_of_a_million_prompts_costs_less_than_reading_it() -> None:
    text = json.dumps({"prompt": [[1]] * 1_000_000}).encode()
    assert read_request(COMPLETIONS_PATH, text, SERVED).whole
    assert cost_ratio(lambda: json.loads(text), lambda: read_request(COMPLETIONS_PATH, text, SERVED), rounds=3) < 0.5


PIECES = (
    "\\ud83d", "\\uDE00", "\\uDBff", "\\udc00", "\\ud83d\\ude00", "\\\\", '\\"', "\\n", "\\u0041", "u", "d83d", "é",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from((16, 1024)))
def test_half_of_a_surrogate_pair_is_found_wherever_it_stands(pieces: list[str], slice_bytes: int) -> None:
    body = '{{"prompt":" {}"}}'.format("".join(pieces)).encode()
    try:
        json.loads(body)["prompt"].encode()
        whole = True
    except UnicodeEncodeError:
        whole = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_SLICE_BYTES", slice_bytes)
        if whole:
            assert read_request(COMPLETIONS_PATH, body, SERVED).prompt
        else:
            with pytest.raises(RequestError, match="half of a surrogate pair"):
                read_request(COMPLETIONS_PATH, body, SERVED)


def test_a_pair_of_surrogates_does_not_make_a_body_costly() -> None:
    text = ('{"prompt":"\\ud83d\\ude00","x":[' + ",".join(["[]"] * 2_600_000) + "]}").encode()
    assert read_request(COMPLETIONS_PATH, text, SERVED).prompt
    assert cost_ratio(lambda: json.loads(text), lambda: read_request(COMPLETIONS_PATH, text, SERVED), rounds=3) < 0.5
