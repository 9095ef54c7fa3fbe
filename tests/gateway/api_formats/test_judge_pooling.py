"""What a pooling model is asked for: text and token ids, and nothing that an engine would fetch or load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fulcrum.gateway.api_formats.bodies import read_request
from fulcrum.gateway.api_formats.inference_request import EMBEDDINGS_PATH, RERANK_PATH, SCORE_PATH, ServedModel
from fulcrum.gateway.api_formats.judge_pooling import MOST_TEXTS
from fulcrum.gateway.errors import RequestError

SERVED = ServedModel(name="m", pools=True)
IMAGE = {"content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}


def read(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What an engine is sent."""
    request = read_request(path, json.dumps(body).encode(), SERVED)
    assert (request.pools, request.whole, request.stream, request.max_tokens) == (True, True, False, 1)
    sent: dict[str, Any] = json.loads(request.whole_body())
    return sent


@pytest.mark.parametrize(
    "given",
    ["text", "", ["one", "two"], [1, 2, 3], [[1, 2], [3]], ['{ ] " \\', "x:y"], ["x"] * MOST_TEXTS, list(range(5000))],
)
def test_texts_and_token_ids_are_embedded(given: object) -> None:
    body = {"model": "m", "input": given, "dimensions": 8, "encoding_format": "base64"}
    assert read(EMBEDDINGS_PATH, body) == body


@pytest.mark.parametrize("documents", ["text", ["one", "two"]])
@pytest.mark.parametrize(
    ("queries", "names"),
    [("q", ("queries", "documents")), ("q", ("text_1", "text_2")), (["q", "p"], ("data_1", "data_2")),
     ("q", ("queries", "items"))],
)  # fmt: skip
def test_pairs_are_scored_by_any_of_their_names(queries: object, documents: object, names: tuple[str, str]) -> None:
    sent = read(SCORE_PATH, dict(zip(names, (queries, documents), strict=True)))
    assert sent == {"queries": queries, "documents": documents}


def test_documents_are_reranked() -> None:
    body = {"query": "q", "documents": ["one", "two"], "top_n": 1}
    assert read(RERANK_PATH, body) == body


def test_what_is_the_gateways_is_taken_out() -> None:
    assert read(EMBEDDINGS_PATH, {"input": "x", "request_id": "other", "priority": -5}) == {"input": "x"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EMBEDDINGS_PATH, {}, "input"),
        (EMBEDDINGS_PATH, {"input": None}, "input"),
        (EMBEDDINGS_PATH, {"input": []}, "input"),
        (EMBEDDINGS_PATH, {"input": 7}, "input"),
        (EMBEDDINGS_PATH, {"input": {"text": "x"}}, "input"),
        (EMBEDDINGS_PATH, {"input": [{"role": "user", "content": [{"image_url": {"url": "http://h/x"}}]}]}, "input"),
        (EMBEDDINGS_PATH, {"input": ["text", {"role": "user", "content": "x"}]}, "input"),
        (EMBEDDINGS_PATH, {"input": [1, {"role": "user"}]}, "input"),
        (EMBEDDINGS_PATH, {"input": [[1], "text"]}, "input"),
        (EMBEDDINGS_PATH, {"input": [[{"role": "user", "content": "x"}]]}, "input"),
        (EMBEDDINGS_PATH, {"input": [True]}, "input"),
        (EMBEDDINGS_PATH, {"input": ["x"] * (MOST_TEXTS + 1)}, "input"),
        (EMBEDDINGS_PATH, {"input": [[1]] * (MOST_TEXTS + 1)}, "input"),
        (EMBEDDINGS_PATH, {"input": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        (EMBEDDINGS_PATH, {"input": "x", "encoding_format": "bytes"}, "encoding_format"),
        (EMBEDDINGS_PATH, {"input": "x", "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        (SCORE_PATH, {"documents": "x"}, "queries"),
        (SCORE_PATH, {"queries": "x"}, "documents"),
        (SCORE_PATH, {"queries": IMAGE, "documents": "x"}, "queries"),
        (SCORE_PATH, {"queries": "x", "documents": [IMAGE]}, "documents"),
        (SCORE_PATH, {"text_1": "x", "text_2": ["y", IMAGE]}, "documents"),
        (SCORE_PATH, {"queries": "x", "text_1": "y", "documents": "z"}, "text_1"),
        (RERANK_PATH, {"documents": ["x"]}, "query"),
        (RERANK_PATH, {"query": ["x"], "documents": ["x"]}, "query"),
        (RERANK_PATH, {"query": "x", "documents": [[1, 2]]}, "documents"),
        (RERANK_PATH, {"query": "x", "documents": [{"text": "x"}]}, "documents"),
        (RERANK_PATH, {"query": "x", "documents": ["x"] * (MOST_TEXTS + 1)}, "documents"),
    ],
)
def test_everything_else_is_refused_by_its_name(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(path, body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_another_model_does_not_exist() -> None:
    with pytest.raises(RequestError) as refused:
        read(RERANK_PATH, {"model": "other", "query": "x", "documents": ["x"]})
    assert refused.value.status == 404
