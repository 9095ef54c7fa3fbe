"""Malformed HTTP and JSON get a 4xx, and the gateway serves on."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest
from answers import Question, post
from local_cluster import Cluster
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def http(body: bytes, *, path: bytes = b"/v1/completions") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        path,
        len(body),
        body,
    )


def prompt(**fields: object) -> bytes:
    return json.dumps({"model": "quickstart", "prompt": "a", "max_tokens": 1, **fields}).encode()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: minus one\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (http(b"{"), 400),
        (http(b""), 400),
        (http(b"[]"), 400),
        (http(b"\xff\xfe"), 400),
        (http(prompt(max_tokens="many")), 400),
        (http(prompt(model="another")), 404),
        (http(b"{}", path=b"/v1/nothing"), 404),
        (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
def test_4xx_and_still_serving(
    quickstart: Cluster, questions: list[Question], request_bytes: bytes, status: int
) -> None:
    url = urlsplit(quickstart.endpoint())
    assert url.hostname is not None
    with socket.create_connection((url.hostname, url.port or 80), timeout=deadline_seconds(120)) as connection:
        connection.sendall(request_bytes)
        with HTTPResponse(connection) as response:
            response.begin()
            body = response.read()
    assert response.status == status, body
    assert json.loads(body)["error"]["message"]
    answer = post(f"{quickstart.endpoint()}/v1/completions", questions[0].body)
    assert answer["choices"][0]["text"] == questions[0].answer
