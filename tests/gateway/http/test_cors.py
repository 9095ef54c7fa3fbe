"""Web pages: which may ask, and what a browser is told before and with an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Answered, Engine, MakeSite, Site

from fulcrum.api.gateway import GatewayLimits
from fulcrum.api.names import Role

PAGE = "https://app.example.com"
BODY = {"model": "m", "prompt": "x", "max_tokens": 3}


async def ask(site: Site, method: str, path: str, headers: str, body: object = None) -> Answered:
    client = await site.connect()
    data = b"" if body is None else json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    client.send(f"{method} {path} HTTP/1.1\r\nHost: g\r\n{headers}{kind}\r\n".encode() + data)
    return await client.answer()


def preflight(origin: str) -> str:
    return (
        f"Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization,content-type\r\n"
    )


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((PAGE,), PAGE, PAGE),
        ((PAGE,), "https://APP.example.com", "https://APP.example.com"),
        ((PAGE,), "https://evil.example.com", None),
        ((PAGE,), "null", None),
        (("*",), "https://any.example.com", "*"),
        ((), PAGE, None),
    ],
)
async def test_a_page_that_is_named_may_ask(
    make_site: MakeSite, tmp_path: Path, origins: tuple[str, ...], origin: str, allowed: str | None
) -> None:
    (tmp_path / "one").write_text("a-key-of-a-page")
    config: dict[str, Any] = {"cors_origins": origins, "api_keys_directory": str(tmp_path)}
    site = await make_site(Engine("m", Role.MIXED), config=config)
    before = await ask(site, "OPTIONS", "/v1/chat/completions", preflight(origin))
    if allowed is None:
        assert before.status == 401
        assert "access-control-allow-methods" not in before.headers
    else:
        assert before.status == 200
        assert before.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in before.headers["access-control-allow-methods"]
    key = "Authorization: Bearer a-key-of-a-page\r\n"
    for headers, status in ((key, 200), ("", 401)):
        for stream in (False, True):
            answer = await ask(
                site, "POST", "/v1/completions", f"Origin: {origin}\r\n{headers}", {**BODY, "stream": stream}
            )
            assert answer.status == status
            assert answer.headers.get("access-control-allow-origin") == allowed
            assert ("vary" in answer.headers) is bool(origins)


@pytest.mark.parametrize(
    ("extra", "status"),
    [("Content-Length: 5000\r\n", 413), ("Content-Length: 5\r\nContent-Encoding: gzip\r\n", 415)],
)
async def test_a_page_reads_why_its_request_was_not_read(make_site: MakeSite, extra: str, status: int) -> None:
    site = await make_site(
        Engine("m", Role.MIXED), config={"cors_origins": (PAGE,)}, limits=GatewayLimits(max_body_bytes=1000)
    )
    client = await site.connect()
    client.send(f"POST /v1/completions HTTP/1.1\r\nHost: g\r\nOrigin: {PAGE}\r\n{extra}\r\n".encode())
    answer = await client.answer()
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, PAGE)


async def test_a_page_reads_why_its_key_was_refused_before_its_body_came(make_site: MakeSite, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a-key-of-a-page")
    config: dict[str, Any] = {"cors_origins": (PAGE,), "api_keys_directory": str(tmp_path)}
    site = await make_site(Engine("m", Role.MIXED), config=config)
    client = await site.connect()
    client.send(f"POST /v1/completions HTTP/1.1\r\nHost: g\r\nOrigin: {PAGE}\r\nContent-Length: 500\r\n\r\n".encode())
    answer = await client.answer()
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, PAGE)
