"""Uploads and what is refused: each error names the field and what to do. Bodies are passed on unread."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from tests.batch.conftest import House, MakeHouse, ended, lines
from tests.gateway.conftest import eventually
from tests.machine import deadline_seconds

CHAT = "/v1/chat/completions"


async def test_a_file_larger_than_a_request_passes_through(make_house: MakeHouse) -> None:
    """Gateways take bodies of 8 MiB, and hold them in memory; a file is passed on piece by piece, both ways."""
    house = await make_house()
    client = house.client()
    content = lines(1, padding="x" * 7_000_000) + lines(1, padding="y" * 7_000_000).replace(b"request-0", b"request-1")
    file = await client.files.create(file=("large.jsonl", content), purpose="batch")
    assert file.bytes == len(content)
    assert (await client.files.content(file.id)).content == content
    assert house.site.gateway.bodies.total_bytes == 0


async def test_what_is_refused_at_an_upload(make_house: MakeHouse) -> None:
    house = await make_house(limits={"maxFileBytes": 100_000, "maxFiles": 2})
    client = house.client().with_options(max_retries=0)
    with pytest.raises(openai.BadRequestError, match="must be `batch`") as wrong:
        await client.files.create(file=("in.jsonl", lines(1)), purpose="assistants")
    assert wrong.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="empty"):
        await client.files.create(file=("in.jsonl", b""), purpose="batch")
    for size in (150_000, 5_000_000):  # told by the head, or only by the part
        with pytest.raises(openai.APIStatusError, match=r"spec\.batch\.maxFileSize") as large:
            await client.files.create(file=("in.jsonl", b"x" * size), purpose="batch")
        assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="at least 3600"):
        await client.files.create(
            file=("in.jsonl", lines(1)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 60}
        )
    kept = await client.files.create(
        file=("../../in.jsonl", lines(1)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (kept.filename, kept.expires_at) == ("in.jsonl", kept.created_at + 7200)
    await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="delete some"):
        await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    first = await client.files.list(limit=1)
    assert (len(first.data), first.has_more) == (1, True)
    assert len([each async for each in client.files.list(limit=1)]) == 2
    assert {path.name.split(".")[0] for path in (house.directory / "files").iterdir()} == {
        each.id async for each in client.files.list()
    }


async def test_an_upload_that_breaks_off_leaves_nothing(make_house: MakeHouse) -> None:
    house = await make_house()
    client = await house.site.connect()
    client.send(
        b"POST /v1/files HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer secret-of-anna\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"60\r\n"
        + b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'.ljust(0x60, b"x")
        + b"\r\n"
    )
    folder = house.directory / "files"
    await eventually(lambda: any(path.name.startswith(".new-") for path in folder.iterdir()))
    client.close()
    await eventually(lambda: not any(folder.iterdir()))


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"\n\n", "empty_file", "no requests"),
        (b"{\n", "invalid_json_line", "not valid JSON"),
        (b'{"custom_id": "a"}\n', "invalid_request_line", "method"),
        (lines(1) + lines(1), "duplicate_custom_id", "its own"),
        (lines(1, url="/v1/completions"), "mismatched_endpoint", "/v1/chat/completions"),
        (lines(1).replace(b"POST", b"GET"), "invalid_method", "POST"),
        (lines(1, stream=True), "stream_not_allowed", "leave `stream` out"),
        (lines(1, model=None), "invalid_body", "model"),
        (lines(4), "too_many_requests", "3"),
        (lines(1, padding="x" * 5000), "line_too_long", "4000"),
    ],
)
async def test_a_file_that_cannot_be_run_fails_its_batch(
    make_house: MakeHouse, content: bytes, code: str, message: str
) -> None:
    house = await make_house(limits={"maxLines": 3, "maxLineBytes": 4000})
    client = house.client()
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = await ended(client, made.id)
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.errors is not None
    error = batch.errors.data[0]
    assert error.code == code
    assert message in error.message
    assert house.engine.seen == []


async def test_what_is_refused_at_the_creation_of_a_batch(make_house: MakeHouse) -> None:
    house = await make_house()
    client = house.client().with_options(max_retries=0)
    file = await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    good: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    for changes, param in (
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1s"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(**{**good, **changes})
        assert refused.value.param == param
    raw = await _raw(house, "POST", "/v1/batches", b"{")
    assert (raw.status_code, raw.json()["error"]["code"]) == (400, "invalid_json")
    assert (await _raw(house, "GET", "/v1/files?limit=0")).status_code == 400
    assert (await _raw(house, "GET", "/v1/batches?after=none")).status_code == 400
    assert (await _raw(house, "PUT", "/v1/files")).status_code == 405
    assert (await _raw(house, "GET", "/v1/files/..%2f..%2fetc%2fpasswd/content")).status_code == 404
    # Whoever reaches the process itself without the cluster's token gets nothing.
    async with httpx.AsyncClient(trust_env=False) as direct:
        answer = await direct.get(f"http://127.0.0.1:{house.port}/v1/files", headers={"x-fulcrum-key-name": "anna"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_token")


async def test_it_is_not_mixed_with_other_requests_of_a_connection(make_house: MakeHouse) -> None:
    house = await make_house()
    client = await house.site.connect()
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 2}).encode()
    key = b"Authorization: Bearer secret-of-anna\r\n"
    client.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: g\r\n%bContent-Type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        b"GET /v1/files HTTP/1.1\r\nHost: g\r\n%b\r\n" % (key, len(body), body, key)
    )
    assert (await client.answer()).status == 200
    refused = await client.answer()
    assert (refused.status, "are answered" in refused.json()["error"]["message"]) == (400, True)
    client = await house.site.connect()
    client.send(b"GET /v1/files HTTP/1.1\r\nHost: g\r\n%b\r\nGET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n" % key)
    listed = await client.answer()
    assert (listed.status, listed.headers["connection"], listed.json()["data"]) == (200, "close", [])
    async with asyncio.timeout(deadline_seconds(60)):
        assert await client.reader.read() == b""  # one answer, then the end


async def _raw(house: House, method: str, path: str, body: bytes = b"") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.request(
            method,
            f"http://127.0.0.1:{house.site.gateway.port}{path}",
            content=body,
            headers={"authorization": "Bearer secret-of-anna", "content-type": "application/json"},
        )
